"""What the rate experiments read off their runs, against arithmetic with many digits and against
closed forms.
"""

import mpmath as mp
import numpy as np

from attsvm.claims import Evidence
from attsvm.datasets import gauss
from attsvm.selection import optimal_tokens
from attsvm_papers.rates import adaptive
from attsvm_papers.rates import e3_decoder as rates_3


def test_attention_off_a_token_is_exact_at_any_saturation() -> None:
    data, heads = gauss(2, 3, 4, seed=[0, 1])
    tokens = optimal_tokens(data, heads)
    W = (
        np.random.default_rng(0).standard_normal((3, 2, 4, 4))
        * np.array([1.0, 50.0, 4000.0])[:, None, None, None]
    )
    found = adaptive.log_missing(data, tokens, W)
    with mp.workdps(4000):
        for k in range(3):
            for run in range(2):
                worst = mp.mpf("-inf")
                for i in range(2):
                    logits = [
                        mp.mpf(x) for x in data.tokens[run, i] @ (W[k, run] @ data.queries[run, i])
                    ]
                    e = [mp.e ** (a - logits[tokens[run, i]]) for a in logits]
                    others = mp.fsum(e) - e[tokens[run, i]]
                    worst = max(worst, mp.log(others / mp.fsum(e)))
                # logits of size 4000 keep 1e-12 of an absolute error
                assert abs(found[k, run] - float(worst)) < 1e-13 * max(
                    1.0, abs(W[k, run]).max() * 10
                )


def test_a_power_law_has_its_exponent() -> None:
    step = np.array([[0, 1, 10, 100, 1000, 10_000]] * 2)
    with np.errstate(divide="ignore"):
        values = np.where(step > 0, 3.0 * step**-0.7, 5.0)
    rows = Evidence({"step": step, "error": values})
    np.testing.assert_allclose(adaptive.rate(rows, "error", 10, 10_000), -0.7, rtol=1e-12)
    np.testing.assert_allclose(rows.at("error", 100), 3.0 * 100**-0.7)


def test_marks_hold_the_powers_of_ten() -> None:
    marks = adaptive.marks(20_000)
    assert {1, 10, 100, 1000, 10_000, 20_000} <= set(marks)
    assert marks == sorted(set(marks))


def test_polyak_is_ahead_and_the_norms_grow_as_derived() -> None:
    found = {
        rule: adaptive.trained(rule, range(2), 1000).trajectory
        for rule in (adaptive.CONSTANT, adaptive.ROOT, adaptive.POLYAK)
    }
    assert {trajectory.backend for trajectory in found.values()} == {"compiled"}
    norms = {rule: trajectory.norm[-1] for rule, trajectory in found.items()}
    assert (norms[adaptive.CONSTANT] <= 1000 * 0.05 * (1 + 1e-12)).all()
    assert (norms[adaptive.ROOT] <= 0.5 * np.sum(np.arange(1, 1001) ** -0.5) * (1 + 1e-12)).all()
    assert (norms[adaptive.POLYAK] > 10 * norms[adaptive.CONSTANT]).all()


def test_the_decoder_alone_slows_down() -> None:
    found = rates_3.run(range(2), 300)
    np.testing.assert_array_less(found["norm"][:, -1], 300 * rates_3.LR * (1 + 1e-12))
    reach = sum(rates_3.slowing(step) for step in range(300))
    assert (found["norm_decoder"][:, -1] <= reach * (1 + 1e-12)).all()
    assert (found["norm_decoder"][:, -1] > 0.5 * reach).all()  # most steps point the same way
