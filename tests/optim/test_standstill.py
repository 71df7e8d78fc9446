"""Optimisers say once when a group barely moves, and healthy ones say nothing; the starting rates
that the documentation gives train a small decoder.
"""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm.optim.standstill import STEPS, _sketch
from attsvm_papers.heads.decoder import MADE, Decoder, Sizes, characters, held_out_loss, windows

SIZES = Sizes(context=32, width=32, depth=2, heads=4, batch=16, steps=150)
SEED = 10_000  # rule and rates were chosen on seed 0


def moves(optimizer: torch.optim.Optimizer, steps: int = STEPS, push: float = 1.0) -> list[str]:
    """What is said while the gradient of every parameter is ``push`` in every entry."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(steps):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.full_like(parameter, push)
            optimizer.step()
    return [str(each.message) for each in said]


def weight(*shape: int, size: float = 1.0) -> nn.Parameter:
    return nn.Parameter(size * torch.randn(*shape, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("shape", [(3,), (40, 50), (5, 16, 16)])
def test_the_difference_of_sketches_has_the_length_of_the_difference(
    shape: tuple[int, ...],
) -> None:
    before = weight(*shape)
    ratios = []
    for k in range(40):
        step = torch.randn(shape, generator=torch.Generator().manual_seed(k))
        found = (_sketch(before + step) - _sketch(before)).norm() / step.norm()
        ratios.append(float(found.detach()))
    assert 0.75 < sum(ratios) / len(ratios) < 1.25
    one = torch.zeros(shape)
    one.view(-1)[-1] = 2.0  # a single entry, and rows that add up to nothing
    assert float(_sketch(one).norm()) == 2.0
    pairs = torch.cat([torch.ones(64, 64), -torch.ones(64, 64)])
    assert float(_sketch(pairs).norm()) > 0.5 * float(pairs.norm())


def test_it_is_said_once_for_each_group_and_after_fifty_steps() -> None:
    slow = {"params": [weight(6, 4)], "lr": 1e-5}
    fast = {"params": [weight(6, 4)], "lr": 1e-2}
    optimizer = SteepestDescent([slow, fast, dict(slow, params=[weight(3, 3)])], lr=1.0)
    assert moves(optimizer, STEPS - 1) == []
    said = moves(optimizer, 1)
    assert [words[:44] for words in said] == [
        f"in 50 steps group {k} of SteepestDescent (1 te" for k in (0, 2)
    ]
    assert "raise lr (now 1e-05) about" in said[0]
    assert moves(optimizer, 3 * STEPS) == []


def test_the_rate_that_is_proposed_is_heard_no_more() -> None:
    said = moves(SteepestDescent([weight(6, 4)], lr=1e-4))
    (times,) = re.findall(r"about (\d+) times", said[0])
    assert moves(SteepestDescent([weight(6, 4)], lr=1e-4 * float(times))) == []


def test_an_unnormalised_step_may_be_normalised() -> None:
    (said,) = moves(MirrorDescent([weight(6, 4)], lr=0.3, p=1.1), push=1e-8)
    assert "normalise its steps (normalize=True, lr=0.03), or raise lr (now 0.3)" in said
    assert moves(MirrorDescent([weight(6, 4)], lr=0.03, p=1.1, normalize=True), push=1e-8) == []


def test_zeros_that_stay_are_told_apart() -> None:
    zeros = nn.Parameter(torch.zeros(8))
    (said,) = moves(MirrorDescent([zeros], lr=1e-3, p=1.1))
    assert "began at zero" in said
    assert "p=2" in said
    assert moves(MirrorDescent([nn.Parameter(torch.zeros(8))], lr=1e-3, p=2)) == []


def test_nothing_is_said_without_a_gradient_after_a_checkpoint_or_in_a_warm_up() -> None:
    assert moves(SteepestDescent([weight(6, 4)], lr=1e-5), push=0.0) == []
    loaded = SteepestDescent([weight(6, 4)], lr=1e-5)
    loaded.load_state_dict(SteepestDescent([weight(6, 4)], lr=1e-5).state_dict())
    assert moves(loaded) == []
    assert moves(copy.deepcopy(SteepestDescent([weight(6, 4)], lr=1e-5))) == []
    optimizer = SteepestDescent([weight(6, 4)], lr=1e-2)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 1000))
    for _ in range(400):
        assert moves(optimizer, 1) == []
        warm.step()
    slow = SteepestDescent([weight(6, 4)], lr=1e-5)
    torch.optim.lr_scheduler.ConstantLR(slow, factor=1.0)
    assert len(moves(slow)) == 1


def test_what_may_not_be_read_is_not() -> None:
    rate = torch.tensor(1e-5)
    assert moves(SteepestDescent([weight(6, 4)], lr=rate, capturable=True)) == []


def decoder(std: float | None, seed: int, sizes: Sizes = SIZES) -> Any:
    """A decoder of made sentences, with the weights of PyTorch's layers or normal ones."""
    torch.manual_seed(seed)
    model = Decoder(characters(MADE)[2], sizes)
    for module in model.modules() if std else ():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
    return model


def trained(model: Any, build: Any, steps: int, seed: int) -> tuple[float, list[str]]:
    """Held-out loss after training queries and keys by ``build`` and the rest by AdamW, and what
    was said.
    """
    train, held, _ = characters(MADE)
    chosen = [part.weight for block in model.blocks for part in (block.queries, block.keys)]
    mine = {id(each) for each in chosen}
    rest = [each for each in model.parameters() if id(each) not in mine]
    own = [build(chosen)] if build else []
    optimizer = CombinedOptimizer([*own, torch.optim.AdamW(rest, lr=1e-3)])
    draw = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(steps):
            starts = torch.randint(len(train) - SIZES.context, (SIZES.batch, 1), generator=draw)
            texts: Tensor = train[starts + torch.arange(SIZES.context + 1)]
            logits = model(texts[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, texts[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    judged = windows(held, 64, SIZES.context + 1, 1)
    return held_out_loss(model, judged), [str(each.message) for each in said]


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_queries_and_keys_of_a_decoder_that_barely_move(seed: int) -> None:
    """Weights of standard deviation .02, as language models begin, under mirror descent without
    normalised steps.
    """

    def build(chosen: list[Tensor]) -> MirrorDescent:
        return MirrorDescent(chosen, lr=0.3, p=1.1, momentum=0.9)

    _, said = trained(decoder(0.02, seed), build, STEPS, seed)
    assert len(said) == 1
    assert "group 0 of MirrorDescent (4 tensors, 4096 numbers) has no tensor that moved" in said[0]


PAGE = Path(__file__).parents[2] / "docs" / "optimisers.md"
ROWS = (
    re.findall(
        r"^\| `((?:MirrorDescent|SteepestDescent)\(queries_and_keys[^`]*)`",
        PAGE.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    if PAGE.exists()
    else []
)


@pytest.fixture(scope="module")
def frozen() -> float:
    """The loss where queries and keys stay as they are."""
    return trained(decoder(None, SEED), None, SIZES.steps, SEED)[0]


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")
def test_the_page_has_starting_rates() -> None:
    assert len(ROWS) == 10


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.slow] if k % 3 else []) for k, row in enumerate(ROWS)],
)
def test_a_documented_starting_rate_trains_a_small_decoder(row: str, frozen: float) -> None:
    names = {"MirrorDescent": MirrorDescent, "SteepestDescent": SteepestDescent}
    build = eval(f"lambda queries_and_keys: {row}", names)
    loss, said = trained(decoder(None, SEED), build, SIZES.steps, SEED)
    assert said == [], "a healthy training is left alone"
    assert loss < frozen - 0.02
    _, said = trained(decoder(0.02, SEED), build, STEPS, SEED)
    assert said == [], "nor with smaller weights"
