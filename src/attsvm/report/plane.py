"""The explorer on the page of a run, where its tokens have two features."""

from __future__ import annotations

import numpy as np

from attsvm.data import AttentionData
from attsvm.geometry import Lp, parse_norm
from attsvm.report.explorer import fragment, script_hash, style
from attsvm.report.explorer.states import Own, state_of
from attsvm.report.folder import Run

_ARRAYS = ("tokens", "labels", "queries", "mask", "selected", "scores", "sequence")


def explorer(run: Run) -> dict[str, str] | None:
    """What the template needs: the fragment, its style, and what the Content-Security-Policy has to
    allow. None where the run holds no tokens in the plane.
    """
    arrays = [run.arrays.get(f"plane_{name}") for name in _ARRAYS]
    if any(array is None for array in arrays):
        return None
    tokens, labels, queries, mask, selected, scores, sequence = arrays
    data = AttentionData(tokens, labels, queries, mask)  # type: ignore[arg-type]
    norm = parse_norm(str(run.at("results.margin.geometry") or "fro"))
    p = max(1.1, norm.p) if isinstance(norm, Lp) else 2.0
    places = np.asarray(sequence)
    if (train := run.arrays.get("train")) is not None:
        places = train[places]  # the table of constraints counts in the original data as well
    names = ", ".join(f"{name} is {place}" for name, place in zip("ABCDE", places, strict=False))
    prompt = (
        "the best prompt for them alone"
        if data.queries.shape[-1] == 1
        else "the best prompt for them alone, one and the same for all, where the run has a query"
        " of each sequence's own"
    )
    sentence = (
        f"Some training sequences of this run ({names}), with the tokens that it selected filled."
        f" The green arrow is {prompt}, and training (blue) turns towards it. Drag any token."
    )
    return {
        "html": fragment(Own(state_of(data, selected, scores, p), "this run", sentence)),
        "css": style(),
        "source": f"script-src '{script_hash()}'",
    }
