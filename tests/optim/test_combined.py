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

from attsvm.base.errors import InputError
from attsvm.optim import MirrorDescent, SteepestDescent
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
    lists = [group["params"] for member in optimizer.optimizers for group in member.param_groups]
    assert {p for parameters in lists for p in parameters} == set(fresh.values())
    bias = fresh[net[1].bias]
    optimizer.state = {bias: {"step": torch.tensor(7.0)}}
    assert optimizer.optimizers[1].state[bias]["step"] == 7


def test_a_combination_prints_a_line_for_each_group() -> None:
    """With the rate, and what differs from the defaults of its class."""
    weight, bias = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
    mirror = MirrorDescent([weight], lr=0.1, p=3.0)
    nested = CombinedOptimizer([mirror, torch.optim.AdamW([bias], weight_decay=0.0)])
    assert str(CombinedOptimizer([nested])).splitlines() == [
        "CombinedOptimizer (",
        "    CombinedOptimizer (",
        "        MirrorDescent, 1 tensor: lr 0.1, p 3.0",
        "        AdamW, 1 tensor: lr 0.001, weight_decay 0.0",
        "    )",
        ")",
    ]


def test_refusals():
    net = model()
    first = MirrorDescent(net.parameters(), lr=0.1, p=1.5)
    with pytest.raises(InputError, match="is in two optimisers, MirrorDescent and AdamW"):
        CombinedOptimizer([first, torch.optim.AdamW(net[1].parameters())])
    with pytest.raises(InputError, match="no optimisers"):
        CombinedOptimizer([])
    assert CombinedOptimizer(first).optimizers == (first,)
    with pytest.raises(InputError, match="is LBFGS, whose step evaluates"):
        CombinedOptimizer([torch.optim.LBFGS(net.parameters())])
    with pytest.raises(InputError, match="is a list"):
        CombinedOptimizer([[first]])
    optimizer = combined(net)
    with pytest.raises(InputError, match="which member gets a new parameter group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(first.state_dict())
    with pytest.raises(InputError, match="give as many groups"):
        optimizer.param_groups = first.param_groups


def pairs(*kinds):
    """A combination of optimisers of one matrix each, after a step."""
    weights = [nn.Parameter(torch.full((3, 3), 1.0 + k)) for k in range(len(kinds))]
    optimizer = CombinedOptimizer([kind([w]) for kind, w in zip(kinds, weights, strict=True)])
    for w in weights:
        w.grad = w.detach().clone()
    optimizer.step()
    return optimizer


def mirror(weights):
    return MirrorDescent(weights, lr=0.1, p=1.5)


def steepest(weights):
    return SteepestDescent(weights, lr=0.1, momentum=0.9)


adam, sgd = torch.optim.AdamW, torch.optim.SGD
CHECKPOINTS = [
    (
        [mirror, adam],
        [adam, mirror],
        r"AdamW \(member 0 of CombinedOptimizer\): .* settings dampening, decay",
    ),
    ([adam, mirror], [mirror, adam], r"MirrorDescent \(member 0 of .*: it has the state exp_avg"),
    ([mirror, steepest], [steepest, mirror], r"SteepestDescent \(member 0 of .* the state dual"),
    ([steepest, mirror], [steepest, steepest], r"\(member 1 of CombinedOptimizer\): .* state dual"),
    (
        [sgd, steepest],
        [steepest, sgd],
        r"SGD \(member 1 of .*: it has the settings adjust_lr_fn, blocks",
    ),
    ([adam, sgd], [sgd, adam], r"SGD \(member 0 of .*: it has the settings amsgrad, betas"),
    (
        [adam],
        [mirror, adam],
        "a different number of parameter groups than Com.*, 1 and not 2",
    ),
    ([adam, adam, adam], [mirror, adam], "number of parameter groups than .*, 3 and not 2"),
    (
        [adam, mirror],
        [lambda w: CombinedOptimizer([adam(w)]), adam],
        r"AdamW \(member 1 of CombinedOptimizer\): it has the settings dampening, decay",
    ),
    (
        [adam, mirror],
        [adam, lambda w: CombinedOptimizer([steepest(w)])],
        r"SteepestDescent \(member 0 of CombinedOptimizer \(member 1 of CombinedOptimizer\)\)",
    ),
]


@pytest.mark.parametrize(("saved", "loading", "sentence"), CHECKPOINTS)
def test_members_of_a_checkpoint_are_those_that_load_it(saved, loading, sentence):
    other, optimizer = pairs(*saved), pairs(*loading)
    for group in other.param_groups:
        group["lr"] = 7.0
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(InputError, match=sentence):
        optimizer.load_state_dict(other.state_dict())
    after = optimizer.state_dict()
    assert before["param_groups"] == after["param_groups"]
    for index, entries in before["state"].items():
        assert entries.keys() == after["state"][index].keys()
        for name, value in entries.items():
            assert torch.equal(value, after["state"][index][name])


def test_the_state_of_sgd_without_momentum_and_of_one_that_goes_on():
    """Its names are those of steepest descent, which continues it to the bit."""
    for momentum in (0.0, 0.9):
        weights = [nn.Parameter(torch.arange(6.0).reshape(2, 3)) for _ in range(2)]
        theirs = sgd(weights[:1], lr=0.1, momentum=momentum)
        ours = SteepestDescent(weights[1:], lr=0.1, momentum=momentum, normalize=False)
        for step in range(4):
            if step == 2:
                saved = copy.deepcopy(theirs.state_dict())
                if not momentum:  # as torch saved it before 2.3
                    saved["state"] = {0: {"momentum_buffer": None}}
                ours.load_state_dict(saved)
                with torch.no_grad():
                    weights[1].copy_(weights[0])
                assert ours.param_groups[0]["normalize"] is False
            if step == 3:
                for optimizer in (theirs, ours):
                    optimizer.param_groups[0]["momentum"] = 0.5
            for w in weights:
                w.grad = torch.full_like(w, 0.3) * (step + 1)
            theirs.step()
            ours.step()
        torch.testing.assert_close(weights[1], weights[0], rtol=1e-6, atol=1e-7)


def test_a_nested_member_that_refuses_leaves_all_as_they_were():
    """What it cannot use is known before any member moves; what fails later leaves ours."""
    weights = [nn.Parameter(torch.full((3, 3), 1.0 + k)) for k in range(4)]
    inner = CombinedOptimizer([mirror(weights[1:2]), torch.optim.Adam(weights[2:3])])
    outer = CombinedOptimizer([sgd(weights[:1], lr=0.1), inner, steepest(weights[3:])])
    before = [w.detach().clone() for w in weights]
    for bad, moved in ((1, []), (2, [0])):
        for w in weights:
            w.grad = torch.ones_like(w)
        weights[bad].grad = weights[bad].grad.to_sparse()
        with pytest.raises((InputError, RuntimeError), match="sparse"):
            outer.step()
        ours = [k for k in range(4) if k not in moved]
        assert all(torch.equal(weights[k], before[k]) for k in (ours if bad == 1 else (1, 2, 3)))
    for w in weights:
        w.grad = torch.ones_like(w)
    weights[1].grad = weights[1].grad.to_sparse()
    first = CombinedOptimizer([torch.optim.Adam(weights[2:3])])
    before = [w.detach().clone() for w in weights]
    with pytest.raises(InputError, match="sparse"):  # known before the one in front has moved
        CombinedOptimizer([first, CombinedOptimizer([mirror(weights[1:2])])]).step()
    assert all(map(torch.equal, weights, before))
    weights[1].grad = torch.ones_like(weights[1])
    outer.step()
    assert not any(map(torch.equal, weights[1:], before[1:]))


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
