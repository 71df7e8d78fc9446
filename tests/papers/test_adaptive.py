"""What the rate experiments read off their runs, against arithmetic with many digits."""

import mpmath as mp
import numpy as np

from attsvm.datasets import gauss
from attsvm.selection import optimal_tokens
from attsvm_papers.rates import adaptive


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
