"""Two optimisers behave as one torch optimiser, for everything that training loops do to an
optimiser.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from attsvm.errors import InputError
from attsvm.optim import MirrorDescent
from attsvm.optim.combined import CombinedOptimizer
from attsvm.optim.split import split_params


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Linear(8, 2)
    )


def combined(net, first=MirrorDescent, **settings):
    split = split_params(net)
    settings = settings or {"p": 1.5, "lr": 0.01}
    return CombinedOptimizer(
        [first(split.attention, **settings), torch.optim.AdamW(split.rest, lr=1e-3, foreach=False)]
    )


def backward(net, seed):
    batch = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(seed))
    loss = net(batch).square().mean()
    loss.backward()
    return loss


def train(net, optimizer, steps, start=0):
    for seed in range(start, start + steps):
        optimizer.zero_grad()
        backward(net, seed)
        optimizer.step()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_groups_are_live_and_schedulers_act_on_all():
    net = model()
    optimizer = combined(net)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    train(net, optimizer, 1)
    scheduler.step()
    assert [group["lr"] for member in optimizer.optimizers for group in member.param_groups] == [
        0.005,
        0.0005,
    ]
    optimizer.optimizers[0].param_groups[0]["lr"] = 0.25
    assert optimizer.param_groups[0]["lr"] == 0.25
    extra = nn.Parameter(torch.ones(2, 2))
    optimizer.optimizers[1].add_param_group({"params": [extra], "param_names": ["extra"]})
    assert optimizer.param_groups[2]["params"][0] is extra


def test_state_dict_is_torchs_and_resumes_to_the_bit():
    a, b = model(), model(1)
    first, second = combined(a), combined(b)
    train(a, first, 3)
    file = io.BytesIO()
    torch.save({"model": a.state_dict(), "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # as the Trainer of Hugging Face loads it
    b.load_state_dict(saved["model"])
    second.load_state_dict(saved["optimizer"])
    ids = [index for group in saved["optimizer"]["param_groups"] for index in group["params"]]
    assert ids == list(range(len(ids)))
    assert set(saved["optimizer"]["state"]) == set(ids)
    train(a, first, 2, start=3)
    train(b, second, 2, start=3)
    assert same(a, b)


def test_copies_and_pickles_train_alike():
    net = model()
    optimizer = combined(net)
    train(net, optimizer, 2)
    twins = copy.deepcopy((net, optimizer)), pickle.loads(pickle.dumps((net, optimizer)))
    for pair in ((net, optimizer), *twins):
        train(*pair, 2, start=2)
        assert same(net, pair[0])


def test_state_is_joined_and_belongs_to_the_owner():
    net = model()
    optimizer = combined(net)
    assert len(optimizer.state) == 0
    train(net, optimizer, 1)
    p = net[1].weight
    assert p in optimizer.state
    assert set(optimizer.state) == set(net.parameters())
    optimizer.state[p] = {"step": torch.tensor(7.0)}
    assert optimizer.optimizers[1].state[p]["step"] == 7
    del optimizer.state[p]
    assert p not in optimizer.optimizers[1].state


def test_one_overflow_skips_every_member():
    net = model()
    optimizer = combined(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = copy.deepcopy(net)
    backward(net, 0)
    net[1].bias.grad[0] = float("inf")
    scaler.scale(torch.zeros(()))  # a scaler that has scaled something may unscale
    scaler.step(optimizer)
    scaler.update()
    assert same(net, before)
    assert scaler.get_scale() == 2.0


def test_parameters_may_be_replaced_as_where_a_model_is_sharded():
    net = model()
    optimizer = combined(net)
    train(net, optimizer, 1)
    fresh = {p: nn.Parameter(p.detach().clone()) for p in net.parameters()}
    for group in optimizer.param_groups:
        group["params"] = [fresh[p] for p in group["params"]]
    optimizer.param_groups = optimizer.param_groups
    optimizer.state = optimizer.state
    held = [group["params"] for member in optimizer.optimizers for group in member.param_groups]
    assert {p for each in held for p in each} == set(fresh.values())


def test_refusals():
    net = model()
    first = MirrorDescent(net.parameters(), lr=0.1, p=1.5)
    with pytest.raises(InputError, match="is in two optimisers, MirrorDescent and AdamW"):
        CombinedOptimizer([first, torch.optim.AdamW(net[1].parameters())])
    with pytest.raises(InputError, match="no optimisers"):
        CombinedOptimizer([])
    assert CombinedOptimizer(first).optimizers == (first,)
    with pytest.raises(InputError, match="is a list"):
        CombinedOptimizer([[first]])
    optimizer = combined(net)
    with pytest.raises(InputError, match="which member gets a new parameter group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(first.state_dict())
    with pytest.raises(InputError, match="give as many groups"):
        optimizer.param_groups = first.param_groups


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    net = transformers.BertForSequenceClassification(config)
    optimizer = combined(net)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    data = [
        {"input_ids": torch.randint(1, 20, (5,)), "labels": torch.tensor(i % 2)} for i in range(8)
    ]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, save_steps=2, report_to=[], use_cpu=True, logging_steps=1
    )
    transformers.Trainer(
        net, arguments, train_dataset=data, optimizers=(optimizer, scheduler)
    ).train()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.002, 0.0002])
    again = combined(net)
    again.load_state_dict(torch.load(tmp_path / "checkpoint-2" / "optimizer.pt", weights_only=True))
    assert len(again.state) == len(optimizer.state)


# lightning 2.6 asks torch 2.13 for a class that torch is about to drop, and advises against its own
# data loader defaults.
@pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.*:FutureWarning",
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
)
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            optimizer = combined(self.net)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    module = Module()
    before = copy.deepcopy(module.net)
    trainer = lightning.Trainer(
        max_steps=3,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
        accelerator="cpu",
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(12, 3, 8), batch_size=4))
    assert not same(module.net, before)
