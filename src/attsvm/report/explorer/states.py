"""What the explorer shows: the papers' toys and a few more examples, and states made of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.datasets.toys import toy

State = dict[str, Any]
"""``{p, mode, start, headStart, sequences: [{tokens, scores, chosen, label, weight}]}``, as the
head of ``margin.js`` describes it.
"""

SENTENCE = (
    "Each colour is a sequence of tokens, and attention should choose the filled one: the green"
    " arrow is the prompt that does so with the largest margin, and training (blue) turns towards"
    " it. Drag any token."
)

SEQUENCES = 12
TOKENS = 12
"""The most that one picture holds."""


@dataclass(frozen=True)
class Preset:
    """One example.

    Attributes:
        key: its name in links.
        name: its name in the list.
        say: the sentence above the picture.
        state: what it shows.
        experiment: the experiment whose page begins with it, if any.
    """

    key: str
    name: str
    say: str
    state: State
    experiment: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the module takes it."""
        return {"key": self.key, "name": self.name, "say": self.say, "state": self.state}


@dataclass(frozen=True)
class DataExample:
    """A state made of data.

    Attributes:
        state: what it shows.
        name: what the list of examples calls it.
        say: the sentence above the picture.
    """

    state: State
    name: str
    say: str


def presets() -> list[Preset]:
    """The examples, the first one first. The toys of *Transformers as Support Vector Machines* are
    not among them: their sequences have queries of two features each, so their weights are four
    numbers, and no single prompt shows them.
    """
    return [
        Preset(
            "three",
            "Three sequences",
            SENTENCE,
            _THREE,
        ),
        Preset(
            "one",
            "One sequence (Max-Margin Token Selection, mmts-1)",
            "One sequence of three tokens. Training starts at the blue diamond and ends on the"
            " green ray from wherever you put it.",
            _toy("single_global", start=3),
            "mmts-1",
        ),
        Preset(
            "trap",
            "A trap: a choice that is only locally best (mmts-1)",
            "A1 has the best score, yet training from this start chooses A2 for ever: the only"
            " rival close to A2 is worthless, so nothing pulls it away. Drag the blue diamond up.",
            _toy("single_local", start=5),
        ),
        Preset(
            "seven",
            "Three sequences of seven tokens (mmts-3)",
            "Three sequences of seven tokens each. Only the tokens with a green ring decide the"
            " prompt; all others could move a little without changing anything.",
            _toy("multiple_global", start=5),
            "mmts-3",
        ),
        Preset(
            "joint",
            "Head and attention trained together (mmts-4)",
            "The head that reads the chosen token is trained too, to tell sequence B from A and C."
            " Head and prompt both turn towards solutions of largest margin.",
            _toy("joint"),
            "mmts-4",
        ),
        Preset(
            "relaxed",
            "Trained together, one sequence is easy (mmts-4)",
            "C lies far from the head's boundary. It does not have to be chosen with a margin, and"
            " the best prompt has to beat its rival only just.",
            _toy("joint_nonsupport"),
        ),
        Preset(
            "losses",
            "Two sequences of unequal worth (mmts-6)",
            "Being right about A is worth ten times as much as about B, so the loss soon cares"
            " little about A. The path ends parallel to the green ray, 3.2 below it; as the prompt"
            " grows, its direction still turns towards the ray.",
            _toy("losses", C=10.0),
            "mmts-6",
        ),
        Preset(
            "several",
            "Several chosen tokens",
            "Attention is trained to divide itself equally between A1 and A2. The prompt must not"
            " prefer either, so it stands at right angles to the line between them.",
            _SEVERAL,
        ),
        Preset(
            "impossible",
            "An impossible choice",
            "B1 lies inside the triangle of its rivals, so whatever the prompt, one of them is"
            " ahead of it. The tokens that contradict each other are marked in red: drag B1 out.",
            _IMPOSSIBLE,
        ),
    ]


def preset(key: str) -> Preset:
    """The example of this key."""
    return next(entry for entry in presets() if entry.key == key)


def _sequence(
    tokens: ArrayLike,
    scores: ArrayLike | None = None,
    chosen: Sequence[int] = (0,),
    label: float = 1.0,
    weight: float = 1.0,
) -> dict[str, Any]:
    rows = np.asarray(tokens, dtype=np.float64)
    values = (
        [1.0 if t in chosen else 0.0 for t in range(len(rows))]
        if scores is None
        else np.asarray(scores, dtype=np.float64).tolist()
    )
    return {
        "tokens": rows.tolist(),
        "scores": values,
        "chosen": [int(t) for t in chosen],
        "label": label,
        "weight": weight,
    }


def _state(
    sequences: list[dict[str, Any]],
    *,
    p: float = 2.0,
    mode: str = "fixed",
    start: ArrayLike = (0.0, 0.0),
    head: ArrayLike = (0.0, 0.0),
) -> State:
    return {
        "p": "inf" if np.isinf(p) else float(p),
        "mode": mode,
        "start": np.asarray(start, dtype=np.float64).tolist(),
        "headStart": np.asarray(head, dtype=np.float64).tolist(),
        "sequences": sequences,
    }


def _toy(name: str, start: int = 0, C: float = 1.0) -> State:
    problem = toy(name, C=C)
    data, scores = problem.data, problem.scores
    chosen = np.ones(data.n, dtype=int) if scores is None else scores.argmax(axis=1)
    return _state(
        [
            _sequence(
                data.tokens[i],
                None if scores is None else scores[i],
                [int(chosen[i])],
                float(data.labels[i]),
            )
            for i in range(data.n)
        ],
        mode="joint" if scores is None else "fixed",
        start=problem.starts["p"][start],
        head=problem.starts["v"][0] if "v" in problem.starts else (0.0, 0.0),
    )


_THREE = _state(
    [
        _sequence([[0.75, 0.55], [-0.55, 0.8], [0.25, -0.75]]),
        _sequence([[0.9, -0.15], [0.15, -0.45], [-0.85, 0.1]]),
        _sequence([[0.35, 0.95], [-0.15, 0.25], [-0.6, -0.6]]),
    ],
    start=(-0.6, 0.4),
)
_SEVERAL = _state(
    [
        _sequence([[0.5, 0.85], [0.9, -0.35], [-0.3, 0.35], [-0.7, -0.5]], chosen=(0, 1)),
        _sequence([[0.35, -0.85], [-0.55, -0.75], [-0.75, 0.75]]),
    ],
    mode="shared",
    start=(-0.6, 0.6),
)
_IMPOSSIBLE = _state(
    [
        _sequence([[0.85, 0.3], [-0.35, 0.8], [-0.15, -0.75]]),
        _sequence([[0.1, -0.2], [0.8, -0.5], [-0.6, -0.3], [0.0, 0.6]]),
    ],
    start=(-0.4, 0.3),
)


def state_of(
    data: AttentionData,
    tokens: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    p: float = 2.0,
) -> State:
    r"""The state of sequences with tokens in the plane.

    Args:
        data: ``n`` sequences, ``d_x = 2``; the logit of a token is :math:`z_i\,x^\top w` where the
            queries have one feature, and :math:`x^\top w` where they have more: the explorer has
            one prompt for all sequences.
        tokens: ``(n,)``, position of the chosen token of each sequence; by default the one with
            the highest score, without scores the first.
        scores: ``(n, T)`` token scores, see :func:`attsvm.token_scores`; by default 1 for the
            chosen token and 0 for the others.
        p: exponent of the norm, 1.1 to infinity.

    Raises:
        InputError: tokens that are not in the plane, more sequences or tokens than a picture
            holds, a sequence with one token only, or a position that is not a token.
    """
    if data.tokens.ndim != 3 or data.d_x != 2:
        raise InputError(
            f"the explorer shows tokens with two features, and these have shape"
            f" {data.tokens.shape}; give data of shape (n, T, 2)"
        )
    if not p >= 1.1:
        raise InputError(f"p is {p:g}; the explorer takes p from 1.1 to infinity")
    visible = [np.flatnonzero(row) for row in data.mask]
    longest = max(len(row) for row in visible)
    if data.n > SEQUENCES or longest > TOKENS:
        raise InputError(
            f"the explorer holds {SEQUENCES} sequences of {TOKENS} tokens, and there are {data.n}"
            f" of up to {longest}; choose some with data.take"
        )
    single = next((i for i, row in enumerate(visible) if len(row) < 2), None)
    if single is not None:
        raise InputError(
            f"sequence {single} has one token only, so there is nothing to choose; leave it out"
        )
    values = None if scores is None else _array_of_shape("scores", scores, (data.n, data.T))
    if tokens is not None:
        chosen = _array_of_shape("tokens", tokens, (data.n,)).astype(np.int64)
    elif values is not None:
        chosen = np.where(data.mask, values, -np.inf).argmax(axis=1)
    else:
        chosen = np.array([row[0] for row in visible])
    weights = data.queries[:, 0] if data.queries.shape[-1] == 1 else np.ones(data.n)
    sequences = []
    for i, row in enumerate(visible):
        if chosen[i] not in row:
            raise InputError(f"tokens[{i}] is {chosen[i]}, which is no token of sequence {i}")
        token = int(np.flatnonzero(row == chosen[i])[0])
        sequences.append(
            _sequence(
                data.tokens[i, row],
                None if values is None else values[i, row],
                [token],
                float(data.labels[i]),
                float(weights[i]),
            )
        )
    return _state(sequences, p=p)


def _array_of_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.asarray(value)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}; it must be {shape}")
    return array
