"""Solutions that were saved are the same bits."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import attsvm
from attsvm.base.errors import InputError


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or repr(a) == repr(b))


def solutions() -> dict[str, attsvm.MarginSolution]:
    data, head = attsvm.datasets.unit_sphere(n=4, T=4, d=6, seed=0)
    margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, head))
    contradiction = attsvm.selection_margins(
        attsvm.AttentionData([[[0.0], [1.0], [-1.0]]], [1.0], [[1.0]]), [0]
    )
    sets = np.eye(4, dtype=bool)
    sets[0, 1] = True
    several = attsvm.multi_token_margins(data, sets)
    return {
        "frobenius": attsvm.max_margin(margins),
        "lp": attsvm.max_margin(margins, attsvm.Lp(1.0 + 1.0 / 3.0)),
        "infinity": attsvm.max_margin(margins, attsvm.Lp(float("inf"))),
        "nuclear": attsvm.max_margin(margins, attsvm.Nuclear()),
        "soft": attsvm.max_margin(margins, slack=0.1),
        "infeasible": attsvm.max_margin(contradiction),
        "equalities": attsvm.max_margin(several),
    }


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_every_field_comes_back(tmp_path: Path, suffix: str) -> None:
    for name, solution in solutions().items():
        path = tmp_path / f"{name}{suffix}"
        solution.save(path)
        back = attsvm.MarginSolution.load(path)
        for field in fields(solution):
            if field.name == "margins":
                continue
            assert same(getattr(solution, field.name), getattr(back, field.name)), (name, field)
        for field in fields(solution.margins):
            given = getattr(solution.margins, field.name)
            assert same(given, getattr(back.margins, field.name)), (name, field.name)
        assert np.array_equal(back.margins(back.W), solution.margins(solution.W))


def test_a_warm_start_from_a_file(tmp_path: Path) -> None:
    solution = solutions()["nuclear"]
    solution.save(tmp_path / "a.npz")
    again = attsvm.max_margin(
        solution.margins,
        attsvm.Nuclear(),
        warm_start=attsvm.MarginSolution.load(tmp_path / "a.npz"),
    )
    assert again.status == "optimal"
    assert again.norm == pytest.approx(solution.norm, rel=1e-5)


def test_another_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, W=np.eye(2))
    with pytest.raises(InputError, match="holds no solution"):
        attsvm.MarginSolution.load(path)
    text = np.frombuffer(b'{"format": "attsvm-solution/9"}', dtype=np.uint8)
    np.savez(path, record=text)
    with pytest.raises(InputError, match="holds no solution"):
        attsvm.MarginSolution.load(path)
