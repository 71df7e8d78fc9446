"""Decoders whose attention is pruned: their optimisers, the controls, and claims that can fail."""

import numpy as np
import pytest
import torch

from attsvm.claims import Evidence
from attsvm.errors import UnavailableError
from attsvm_papers.heads.decoder import MADE, Decoder, Sizes, characters
from attsvm_papers.kit import experiment
from attsvm_papers.pruning import e1_survival as pruning_1
from attsvm_papers.pruning.decoders import (
    OPTIMISERS,
    RATES,
    copies,
    letters,
    letters_digest,
    norm,
    optimiser,
    scaled,
    training,
)

TINY = Sizes(context=12, width=12, depth=2, heads=2, batch=4, steps=5)


def claims():
    return {one.id: one for one in experiment("pruning-1").claims}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_moves_every_parameter_once_and_decays_matrices_alone(name) -> None:
    torch.manual_seed(0)
    model = Decoder(9, TINY)
    made = optimiser(model, name, RATES[name], 0.1)
    groups = made.param_groups
    moved = [id(each) for group in groups for each in group["params"]]
    assert sorted(moved) == sorted(id(each) for each in model.parameters())
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    matrices = {
        id(part.weight)
        for block in model.blocks
        for part in block.modules()
        if isinstance(part, torch.nn.Linear)
    }
    assert decayed == matrices
    own = 2 * 2 if name.startswith("l") else len(matrices)
    assert len(groups[0]["params"]) == own


def test_seeds_draw_weights_and_batches_and_rates_fall() -> None:
    ids, _, vocabulary = characters(MADE)
    ends = []
    for seed in (0, 0, 1):
        *_, (step, model) = training(ids, vocabulary, TINY, "adamw", 1e-3, 0.0, seed)
        ends.append(model.out.weight.detach().clone())
    assert step == TINY.steps
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_scaled_heads_have_scaled_norms_and_other_losses() -> None:
    torch.manual_seed(0)
    model, texts = Decoder(9, TINY), torch.randint(9, (3, 12))
    double = scaled(model, 2.0)
    assert norm(double) == pytest.approx(2 * norm(model))
    assert torch.equal(double.out.weight, model.out.weight)
    assert not torch.allclose(double(texts), model(texts))
    assert torch.equal(scaled(model, 1.0)(texts), model(texts))
    squares = []
    with torch.no_grad():
        for block in model.blocks:
            for head in (slice(0, 6), slice(6, 12)):
                W = block.keys.weight[head].T @ block.queries.weight[head] / np.sqrt(6)
                squares.append(float(W.square().sum()))
    assert norm(model) == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-5)


def test_copies_are_counted() -> None:
    """Keys that are zero attend to all alike; the first of equals is no copy, unless it is the same
    token.
    """
    model = Decoder(9, Sizes(context=12, width=12, depth=1, heads=1))
    with torch.no_grad():
        model.blocks[0].keys.weight.zero_()
    assert copies(model, torch.arange(8)[None]) == 0.0
    assert copies(model, torch.zeros(1, 8, dtype=torch.long)) == 1.0


def test_texts_that_are_not_there_are_named(monkeypatch, tmp_path) -> None:
    import lzma

    monkeypatch.setenv("ATTSVM_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"no test\.txt\.xz"):
        letters_digest("wikitext2")
    (tmp_path / "wikitext2").mkdir()
    for name in ("test", "valid"):
        path = tmp_path / "wikitext2" / f"{name}.txt.xz"
        path.write_bytes(lzma.compress(f"ab{name}".encode()))
    train, held, vocabulary = letters("wikitext2")
    assert (len(train), len(held), vocabulary) == (6, 7, 9)
    assert letters_digest("wikitext2") != letters_digest(MADE)
    with pytest.raises(UnavailableError):
        list(experiment("pruning-1").cells(experiment("pruning-1").parameters))


def made(shift, seeds=5, copied=0.0):
    """Rows in which Muon's cost of the top token is smaller by ``shift``."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(seeds):
        for name in ("adamw", "muon"):
            for decay in pruning_1.DECAYS:
                muon = name == "muon"
                cost = 0.3 - shift * muon + 0.01 * rng.normal()
                top = cost * np.array([1, 0.5, 0.2, 0.1])
                size = 10.0 if muon else 5.0
                costs = cost - 0.05 * np.log(pruning_1.FACTORS)
                rows.append(
                    {"seed": seed, "optimiser": name, "decay": decay, "top": top}
                    | {
                        "loss": 1.7 - 0.1 * muon + 0.01 * rng.normal(),
                        "norm": size,
                    }
                    | {"scaled cost": costs, "copies": 0.3 + copied * muon}
                    | {"random": top + 1, "nearest": top + 0.5, "digest": "x"}
                )
    return Evidence({name: np.array([row[name] for row in rows]) for name in rows[0]})


def test_claims_hold_where_they_are_planted_and_fail_where_not() -> None:
    known = claims()
    planted = {name: one.check(made(0.2)).verdict for name, one in known.items()}
    assert set(planted.values()) == {"holds"}
    nothing = {name: one.check(made(0.0)).verdict for name, one in known.items()}
    assert {name for name, verdict in nothing.items() if verdict == "fails"} == {
        *("S1", "S1a", "S1c")
    }
    assert known["S3"].check(made(0.2, copied=0.3)).verdict == "fails"
    tied = made(0.2).but({"nearest": made(0.2)["top"] - 0.01})
    assert known["S4"].check(tied).verdict == "fails"
    assert np.isnan(pruning_1.at_norm(made(0.0), "adamw", np.full(5, 50.0))).all()
    scaled_costs = pruning_1.at_norm(made(0.0), "adamw", np.full(5, 10.0))
    own = pruning_1.of(made(0.0), "adamw", "top")[:, 0]
    assert scaled_costs == pytest.approx(own - 0.05 * np.log(2))
