"""Head and attention weights as pictures, when tokens live in pixel space."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.report.folder import Run
from attsvm.report.style import Picture, canvas, render


def token_shape(run: Run) -> tuple[int, int] | None:
    """``(height, width)`` of a token in pixels when every token is a patch of one size and has one feature per pixel."""
    head = run.arrays.get("head")
    boxes = {
        (int(box[2]), int(box[3]))
        for example in run.examples
        if isinstance(view := example.get("view"), dict) and view.get("kind") == "image"
        for box in view.get("boxes", [])
    }
    if head is None or len(boxes) != 1:
        return None
    height, width = boxes.pop()
    return (height, width) if head.shape == (height * width,) and height > 1 and width > 1 else None


def leading(W: NDArray[np.float64], like: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """First left singular vector of W: the token pattern that attention favours, for the query it answers to most strongly.

    Its sign is free; it is chosen to agree with ``like``, or to make the entry of largest size positive.
    """
    vector: NDArray[np.float64] = np.linalg.svd(np.asarray(W, dtype=np.float64), full_matrices=False)[0][:, 0]
    sign = float(vector @ like) if like is not None else float(vector[np.argmax(np.abs(vector))])
    return -vector if sign < 0 else vector


def weights(run: Run) -> Picture | None:
    """The head, and the leading token pattern of the trained and of the max-margin weights."""
    shape = token_shape(run)
    trained, best = run.arrays.get("W"), run.arrays.get("W_margin")
    if shape is None or trained is None or trained.ndim != 2 or trained.shape[0] != shape[0] * shape[1]:
        return None
    patterns = [("head", np.asarray(run.arrays["head"], dtype=np.float64))]
    favoured = leading(trained)
    patterns.append(("attention,\ntrained", favoured))
    if best is not None and best.shape == trained.shape and np.any(best):
        patterns.append(("attention,\nmax-margin", leading(best, like=favoured)))
    if not all(np.isfinite(pattern).all() for _, pattern in patterns):
        return None
    with canvas(1.95, columns=len(patterns)) as (figure, panels):
        for axes, (name, pattern) in zip(panels, patterns, strict=True):
            size = float(np.abs(pattern).max()) or 1.0
            axes.imshow(pattern.reshape(shape), cmap="PuOr", vmin=-size, vmax=size, interpolation="nearest")
            axes.set_title(name, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        caption = (
            "A token has one feature per pixel, so weights are pictures of a patch. Head: purple pixels speak for the positive class, "
            "orange ones for the negative. Attention: leading left singular vector of W, the patch pattern that draws "
            "attention, or repels it when the query points the other way."
        )
        alt = f"Head and leading attention patterns as images of {shape[0]} by {shape[1]} pixels."
        return render(figure, "weights", "What the weights look for", caption, alt)
