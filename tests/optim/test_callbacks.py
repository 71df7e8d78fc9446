"""What is measured of attention probabilities, and when it is logged."""

from __future__ import annotations

import math
import sys
import types

import pytest
import torch
from torch import nn

from attsvm.errors import InputError, MissingExtraError
from attsvm.optim.callbacks import (
    SelectionProbe,
    lightning_callback,
    selection_metrics,
    trainer_callback,
)


def bert():
    transformers = pytest.importorskip("transformers")
    settings = {
        "vocab_size": 20,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    return transformers.BertModel(transformers.BertConfig(**settings, attn_implementation="eager"))


BATCH = {
    "input_ids": torch.arange(10).reshape(2, 5),
    "attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2]),
}


def test_metrics_are_those_of_the_logits():
    logits = torch.randn(
        3, 2, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    found = selection_metrics([torch.softmax(logits, dim=-1)])
    top = logits.topk(2, dim=-1).values
    assert found["margin"] == pytest.approx(float((top[..., 0] - top[..., 1]).median()), rel=1e-5)
    log_s = torch.log_softmax(logits, dim=-1)
    assert found["entropy"] == pytest.approx(float(-(log_s.exp() * log_s).sum(-1).mean()), rel=1e-5)
    assert found["top_share"] == pytest.approx(float(log_s.exp().amax(-1).mean()), rel=1e-6)


def test_uniform_and_hard_attention():
    uniform = selection_metrics([torch.full((1, 2, 3, 4), 0.25)])
    assert uniform == pytest.approx({"top_share": 0.25, "entropy": math.log(4), "margin": 0.0})
    hard = selection_metrics([torch.eye(4).expand(1, 2, 4, 4)])
    assert hard == pytest.approx(
        {"top_share": 1.0, "entropy": 0.0, "margin": -math.log(torch.finfo(torch.float32).tiny)}
    )


def test_padded_queries_do_not_count():
    attention = torch.full((1, 2, 3, 4), 0.25)
    attention[:, :, 2] = torch.tensor([1.0, 0, 0, 0])
    assert selection_metrics([attention], torch.tensor([[1, 1, 0]]))["top_share"] == pytest.approx(
        0.25
    )


def test_a_hugging_face_model_is_left_as_found():
    model = bert().train()
    model.encoder.layer[0].eval()
    before, state = [module.training for module in model.modules()], torch.get_rng_state()
    found = SelectionProbe(BATCH).measure(model)
    assert set(found) == {"attention/top_share", "attention/entropy", "attention/margin"}
    assert 0.2 < found["attention/top_share"] < 1
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_any_model_by_a_function():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    probe = SelectionProbe(
        x, lambda model, x: [model(x, x, x, average_attn_weights=False)[1]], prefix=""
    )
    assert probe.measure(layer)["entropy"] < math.log(5)


def test_trainer_logs_every_so_many_steps():
    pytest.importorskip("transformers")

    class Trainer:
        def __init__(self):
            self.callbacks, self.logged = [], []

        def add_callback(self, callback):
            self.callbacks.append(callback)

        def log(self, metrics):
            self.logged.append(metrics)

    trainer, model = Trainer(), bert()
    callback = trainer_callback(trainer, SelectionProbe(BATCH), every=2)
    for step in range(1, 5):
        callback.on_step_end(
            None,
            types.SimpleNamespace(global_step=step, is_world_process_zero=True),
            None,
            model=model,
        )
    assert trainer.callbacks == [callback]
    assert [set(entry) for entry in trainer.logged] == [
        set(SelectionProbe(BATCH).measure(model))
    ] * 2


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    settings = {
        "vocab_size": 20,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    net = transformers.BertForSequenceClassification(
        transformers.BertConfig(**settings, attn_implementation="eager")
    )
    data = [{"input_ids": torch.arange(5), "labels": torch.tensor(i % 2)} for i in range(8)]
    trainer = transformers.Trainer(
        net,
        transformers.TrainingArguments(str(tmp_path), max_steps=4, report_to=[], use_cpu=True),
        train_dataset=data,
    )
    trainer_callback(trainer, SelectionProbe(BATCH), every=2)
    trainer.train()
    assert [
        entry["step"] for entry in trainer.state.log_history if "attention/margin" in entry
    ] == [2, 4]


def test_lightning_logs_once_per_step(monkeypatch):
    lightning = types.ModuleType("lightning")
    lightning.Callback = object
    monkeypatch.setitem(sys.modules, "lightning", lightning)
    model, logged = bert(), []
    model.log_dict = lambda metrics, rank_zero_only: logged.append(metrics)
    callback = lightning_callback(SelectionProbe(BATCH), every=2)
    for step in (0, 1, 1, 2, 2, 3, 4):
        callback.on_train_batch_end(types.SimpleNamespace(global_step=step), model, None, None, 0)
    assert len(logged) == 2


def test_refusals(monkeypatch):
    with pytest.raises(InputError, match="attn_implementation='eager'"):
        selection_metrics([])
    with pytest.raises(InputError, match=r"attention is \(2, 3, 4\)"):
        selection_metrics([torch.ones(2, 3, 4)])
    with pytest.raises(InputError, match="every is 0"):
        trainer_callback(None, SelectionProbe(BATCH), every=0)
    for name in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="lightning"):
        lightning_callback(SelectionProbe(BATCH))
