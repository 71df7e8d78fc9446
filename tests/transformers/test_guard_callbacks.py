"""The guard in the trainers of others: logged, resumed, evaluation left out."""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attsvm.base.errors import InputError, MissingExtraError
from attsvm.transformers import guard_lightning, guard_trainer

from .test_guard import Net, measured_steps

transformers = pytest.importorskip("transformers")


def trainer(folder: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    small = {
        "vocab_size": 20,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    net = transformers.BertForSequenceClassification(transformers.BertConfig(**small))
    data = [{"input_ids": torch.arange(5) + i, "labels": torch.tensor(i % 2)} for i in range(8)]
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=6,
        report_to=[],
        use_cpu=True,
        save_steps=3,
        per_device_train_batch_size=2,
        learning_rate=0.05,
        **settings,
    )
    return transformers.Trainer(net, arguments, train_dataset=data, eval_dataset=data)


def test_trainer_clips_logs_accumulates_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    settings = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    one = trainer(tmp_path, **settings)
    callback = guard_trainer(one, tau=1e-3, every=2, action="clip")
    call = "LogitGuardCallback(tau=0.001, every=2, action='clip')"
    assert repr(callback) == f"{call}: training has not begun"
    one.train()
    assert len(callback.guard.state_dict()["shrunk"]) == 4, "weights and biases of one layer"
    logged = [entry for entry in one.state.log_history if "guard/largest_logit" in entry]
    assert [entry["step"] for entry in logged] == [1, 2, 4, 6]
    assert measured_steps(callback.guard) == [0, 1, 3, 5]
    assert callback.guard.steps == 6
    assert "tau=0.001, action='clip', every=2): 2 heads at step 5" in repr(callback)
    assert not callback.guard._hooks
    saved = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())
    assert (
        saved["stateful_callbacks"]["LogitGuardCallback"]["attributes"]["guard_state"]["steps"] == 3
    )
    two = trainer(tmp_path, **settings)
    again = guard_trainer(two, tau=1e-3, every=2, action="clip")
    two.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for mine, theirs in zip(again.guard.metrics(), callback.guard.metrics(), strict=True):
        assert mine.largest == pytest.approx(theirs.largest, rel=1e-6)
        assert mine.step == theirs.step
    one.train()
    logged = [entry for entry in one.state.log_history if "guard/largest_logit" in entry]
    assert logged[0]["step"] == 1, "a second training begins like the first"


def test_a_training_after_one_that_failed_has_one_guard(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    one = trainer(tmp_path)
    callback = guard_trainer(one, tau=1e-3, action="clip")
    one.train_dataset[0]["input_ids"] = torch.full((5,), 10_000)
    with pytest.raises(IndexError):
        one.train()
    first = callback.guard
    one.train_dataset[0]["input_ids"] = torch.arange(5)
    one.train()
    assert first.steps < 6 == callback.guard.steps
    assert not one.model._forward_hooks


def module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):
        """Its ``forward`` is never called."""

        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Tensor) -> Tensor:
            return self.net(batch).square().mean()

        def validation_step(self, batch: Tensor) -> None:
            self.net(100 * batch)

        def log_dict(self, *told: Any, **more: Any) -> None:
            self.logged = [*getattr(self, "logged", ()), told]
            super().log_dict(*told, **more)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    data = torch.utils.data.DataLoader(torch.randn(8, 7, 16), batch_size=2)
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
        "accumulate_grad_batches": 2,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about workers, and folders that exist
        net = module(lightning)
        callback = guard_lightning(tau=1e3, every=2)
        run = lightning.Trainer(max_epochs=3, callbacks=[callback], **settings)
        run.fit(net, data, data)
        assert callback.guard.steps == 6
        assert measured_steps(callback.guard) == [0, 1, 3, 5]
        assert "guard/largest_logit" in run.callback_metrics
        assert len(net.logged) == 4
        # batches of the validation would give 10,000 times as much
        assert callback.guard.metrics()[0].largest < 10
        path = tmp_path / "kept.ckpt"
        run.save_checkpoint(path)
        again = guard_lightning(tau=1e3, every=2)
        more = lightning.Trainer(max_epochs=4, callbacks=[again], **settings)
        other = module(lightning)
        more.fit(other, data, data, ckpt_path=path)
    assert again.guard.steps == 8
    assert len(other.logged) == 1
    assert_ends_with_a_training_that_fails(lightning, settings)
    assert measured_steps(again.guard) == [0, 1, 3, 5, 7]


def assert_ends_with_a_training_that_fails(lightning: Any, settings: dict[str, Any]) -> None:
    """Nothing of the guard watches what is called afterwards."""
    failing, callback = module(lightning), guard_lightning(every=1)
    data = torch.utils.data.DataLoader(torch.randn(8, 7, 15), batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = lightning.Trainer(max_epochs=1, callbacks=[callback], **settings)
        with pytest.raises(RuntimeError, match="shapes"):
            run.fit(failing, data)
    assert not any(module._forward_hooks for module in failing.modules())
    failing.net(torch.randn(2, 7, 16))
    assert callback.guard.metrics() == []


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    callback = guard_lightning()
    several = types.SimpleNamespace(optimizers=[None, None])
    with pytest.raises(InputError, match="the module has 2 optimisers"):
        callback.on_train_start(several, nn.Linear(2, 2))
    for name in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="lightning"):
        guard_lightning()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="transformers"):
        guard_trainer(None)
