"""The claim of the tutorial is measured where its words say."""

from __future__ import annotations

import re

import numpy as np
import pytest

import attsvm

from .conftest import read


def gaps_after(steps: int, seeds: range, tokens: list[np.ndarray]) -> np.ndarray:
    """The gaps of runs that end after so many steps, to the solutions for these tokens."""
    data, heads = attsvm.datasets.unit_sphere(n=4, T=5, d=10, seed=seeds)
    model = attsvm.attention.Attention.cross(data, heads)
    descent = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
    course = attsvm.train(model, data, descent, steps=steps)
    chosen = course.selected[-1] if tokens == [] else tokens[0]
    tokens[:] = [chosen]
    best = attsvm.max_margin_batch(
        [attsvm.selection_margins(data.instance(k), own) for k, own in enumerate(chosen)]
    )
    return course.direction_gap(best)[-1]


def test_the_claim_is_about_the_steps_of_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", read("docs/start/claim.md"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code[0].replace("range(50)", "range(4)"), names)
    claim, run = names["claim"], names["run"]
    measured = claim.measure(attsvm.claims.Evidence.of(run(range(4), d=10)))
    tokens: list[np.ndarray] = []
    late, early = (gaps_after(steps, range(4), tokens) for steps in (2000, 1000))
    np.testing.assert_allclose(measured, early / late, rtol=1e-6)
    assert "after 2000 steps than after 1000" in claim.statement
