"""Head and attention weights as pictures, when tokens live in pixel space."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.report.folder import Run
from attsvm.report.style import Picture, canvas, render


def token_shape(run: Run) -> tuple[int, int] | None:
    """``(height, width)`` when a token has one feature per pixel, of the whole image or of patches
    of one size; else None.
    """
    head = run.arrays.get("head")
    sizes = {
        np.asarray(view.get("pixels", [])).shape
        for example in run.examples
        if isinstance(view := example.get("view"), dict) and view.get("kind") == "image"
    }
    if head is not None and len(sizes) == 1:
        size = sizes.pop()
        if len(size) == 2 and head.shape == (size[0] * size[1],) and min(size) > 1:
            return size[0], size[1]
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
    """First left singular vector of W: the token pattern that attention favours, for the query it
    answers to most strongly.

    Its sign is free; it is chosen to agree with ``like``, or to make the entry of largest size
    positive.
    """
    vector: NDArray[np.float64] = np.linalg.svd(
        np.asarray(W, dtype=np.float64), full_matrices=False
    )[0][:, 0]
    sign = float(vector @ like) if like is not None else float(vector[np.argmax(np.abs(vector))])
    return -vector if sign < 0 else vector


def shortened(name: str) -> str:
    """A class name that fits above a picture."""
    return name if len(name) <= 14 else f"{name[:13]}…"


def weights(run: Run) -> Picture | None:
    """The head, and what attention looks for: per class where ``attention_mean`` tells, else the
    leading pattern of the weights.
    """
    shape = token_shape(run)
    trained, best = run.arrays.get("W"), run.arrays.get("W_margin")
    if (
        shape is None
        or trained is None
        or trained.ndim != 2
        or trained.shape[0] != shape[0] * shape[1]
    ):
        return None
    patterns = [("head", np.asarray(run.arrays["head"], dtype=np.float64))]
    by_class = run.arrays.get("attention_mean")
    if by_class is not None and by_class.shape == (2, trained.shape[0]):
        patterns += [
            (f"attention,\nclass {shortened(name)}", row)
            for name, row in zip(run.class_names, by_class, strict=True)
        ]
        meaning = (
            "Attention: the mean of W z over the training sequences of a class. A token's logit is"
            " its inner product with such a picture, so purple pixels draw attention where they are"
            " inked and orange ones where they are not."
        )
    else:
        favoured = leading(trained)
        patterns.append(("attention,\ntrained", favoured))
        if best is not None and best.shape == trained.shape and np.any(best):
            patterns.append(("attention,\nmax-margin", leading(best, like=favoured)))
        meaning = (
            "Attention: leading left singular vector of W, the pattern that draws attention, or"
            " repels it for the opposite query."
        )
    if not all(np.isfinite(pattern).all() for _, pattern in patterns):
        return None
    with canvas(1.95, columns=len(patterns)) as (figure, panels):
        for axes, (name, pattern) in zip(panels, patterns, strict=True):
            size = float(np.abs(pattern).max()) or 1.0
            axes.imshow(
                pattern.reshape(shape), cmap="PuOr", vmin=-size, vmax=size, interpolation="nearest"
            )
            axes.set_title(name, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        caption = (
            "A token has one feature per pixel, so weights are pictures. Head: inked purple pixels"
            f" speak for the positive class, orange ones for the negative. {meaning}"
        )
        alt = f"Head and leading attention patterns as images of {shape[0]} by {shape[1]} pixels."
        return render(figure, "weights", "What the weights look for", caption, alt)
