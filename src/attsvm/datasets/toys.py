r"""The literal toy points of two papers.

*Max-Margin Token Selection in Attention Mechanism* (``mmts``) trains a prompt p: the logits of a
sequence are its keys times p, which is attention with one-dimensional queries equal to one,
:math:`W = p \in \mathbb R^{2\times 1}`. Its tokens have a third coordinate that attention does not
see and that the head reads: :attr:`Toy.data` holds the 2-D keys, of which the support vector
machines are made, :attr:`Toy.lifted` the tokens, :attr:`Toy.scores` that coordinate times the
label. *Transformers as Support Vector Machines* (``tfsvm``) has 2-D tokens, 2-D queries and a fixed
linear head.

The points that the papers draw at random are those of PyTorch's float32 generator, printed so that
they round-trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.nearest import did_you_mean
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import AttentionData, FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class Toy(Compact):
    r"""One toy problem.

    Attributes:
        name: its name in this library.
        title: what it shows, and where.
        data: the sequences; for ``mmts`` toys 2-D keys with queries equal to one.
        scores: ``(n, T)`` token scores :math:`\gamma_{it}`; None when the head is trained too.
        head: ``(d_x,)``, the fixed head v; None when it is trained or lies outside of the keys.
        starts: starting points of the paper's runs by parameter, ``(runs, ...)`` each: ``p``, ``v``
            or ``W``.
        lifted: the 3-D tokens of the ``mmts`` toys with a fixed head; train
            ``Attention.prompt(toy.lifted, toy.value_head, keys=toy.keys)``. None elsewhere.
        reference: published or computed solutions by name, good to the digits shown:
            ``p`` the max-margin prompt of the optimal tokens (``p_local`` of the rival token,
            ``p_relaxed`` of the relaxed programme), ``v`` the max-margin head, ``W`` the Frobenius
            and ``W_nuclear`` the nuclear solution.

    Example:
        >>> import attsvm
        >>> toy = attsvm.datasets.toy("single_local")
        >>> toy.scores.tolist(), toy.reference["p"].round(4).tolist()
        ([[1.0, 0.9, 0.0]], [-0.099, 0.9901])
        >>> attsvm.max_margin(attsvm.selection_margins(toy.data, [0])).W[:, 0].round(4).tolist()
        [-0.099, 0.9901]
    """

    name: str
    title: str
    data: AttentionData
    scores: FloatArray | None
    head: FloatArray | None
    starts: Mapping[str, FloatArray]
    reference: Mapping[str, FloatArray]

    keys: ClassVar[FloatArray] = np.eye(2, 3)
    """``(2, 3)``: what attention sees of :attr:`lifted`."""
    value_head: ClassVar[FloatArray] = np.array([0.0, 0.0, 1.0])
    """``(3,)``: what the head reads of it."""

    @property
    def lifted(self) -> AttentionData | None:
        """See the attributes."""
        if self.scores is None or self.head is not None:
            return None
        third = self.data.labels[:, None] * self.scores
        return AttentionData(
            np.concatenate([self.data.tokens, third[..., None]], axis=-1),
            self.data.labels,
            self.data.queries,
        )


TITLES = {
    "single_global": "One sequence, every start reaches the optimal token (mmts-1)",
    "single_local": (
        "One sequence, two limits: the optimal token or a locally optimal one (mmts-1)"
    ),
    "multiple_global": "Three sequences, normalised against plain gradient descent (mmts-3)",
    "joint": "Prompt and head trained together, every sequence a support vector (mmts-4)",
    "joint_nonsupport": (
        "Prompt and head trained together, one sequence not a support vector (mmts-4)"
    ),
    "losses": (
        "Two sequences with optimal scores C and 1: the loss moves offsets, not the direction"
        " (mmts-6)"
    ),
    "plane": "Two sequences in the plane: weights against factors (tfsvm-1)",
    "plane_margins": "Two sequences in the plane with their decision lines (tfsvm-1)",
}


PUBLISHED = {
    "mmts-1": "single_global",
    "mmts-3": "multiple_global",
    "mmts-4": "joint",
    "mmts-6": "losses",
    "tfsvm-1": "plane",
}
"""The experiments whose data a toy is."""


def toy(name: str, *, C: float = 1.0) -> Toy:
    """The toy problem of this name, or of the experiment of this name; ``C`` is the optimal score
    of the first sequence of ``losses``.

    Raises:
        InputError: unknown name.

    Example:
        >>> import attsvm
        >>> attsvm.datasets.toy("tfsvm-1").name
        'plane'
        >>> attsvm.datasets.toy("losses", C=5.0).scores.tolist()
        [[0.0, 5.0], [0.0, 1.0]]
    """
    name = PUBLISHED.get(name, name)
    if name in ("single_global", "single_local"):
        return _single(name)
    if name == "multiple_global":
        return _multiple()
    if name in ("joint", "joint_nonsupport"):
        return _joint(name)
    if name == "losses":
        return _losses(C)
    if name in ("plane", "plane_margins"):
        return _plane(name)
    near = did_you_mean(name, [*TITLES, *PUBLISHED])
    raise InputError(f"there is no toy {name!r}; choose one of {', '.join(TITLES)}{near}")


def _arrays(**values: ArrayLike) -> dict[str, FloatArray]:
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


def _prompt_data(keys: ArrayLike, labels: ArrayLike) -> AttentionData:
    queries = np.ones((len(np.asarray(labels)), 1))
    return AttentionData(keys, labels, queries)  # type: ignore[arg-type]


def _single(name: str) -> Toy:
    data = _prompt_data([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]], [1.0])
    scores = np.array([[1.0, 0.9, 0.9 if name == "single_global" else 0.0]])
    starts = _arrays(p=[[0.0, y] for y in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)])
    reference = _arrays(p=np.array([-10.0, 100.0]) / 101.0, p_local=[1.0, 0.0])
    return Toy(name, TITLES[name], data, scores, None, starts, reference)


def _multiple() -> Toy:
    keys = [
        [
            [0.774832, -0.23047204],
            [-1.0867758, 1.1697421],
            [-1.0632025, 0.57695615],
            [-1.252667, 1.0699966],
            [-0.4760317, -0.2524684],
            [-0.54945564, -0.77053076],
            [-0.38666987, -0.34129834],
        ],
        [
            [0.68898094, -0.06827208],
            [-0.8499621, 0.8829005],
            [-0.9633044, 1.2778733],
            [-0.81074035, 0.8312646],
            [-0.49368146, -0.5985354],
            [-0.41206083, -0.47751775],
            [-0.41176873, -0.5204619],
        ],
        [
            [0.94206643, 0.010501497],
            [-0.5395589, 0.7062212],
            [-1.1138496, 1.1839943],
            [-0.74202514, 0.7043652],
            [-0.594624, -0.23494503],
            [-0.60994875, -0.5959669],
            [-0.7133961, -0.27701208],
        ],
    ]
    scores = np.full((3, 7), 0.5)
    scores[:, 0] = 1.0
    starts = _arrays(p=[[x, 0.0] for x in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)])
    name = "multiple_global"
    return Toy(
        name,
        TITLES[name],
        _prompt_data(keys, [1.0, 1.0, 1.0]),
        scores,
        None,
        starts,
        _arrays(p=[0.8446, 0.1711]),
    )


def _joint(name: str) -> Toy:
    third, relaxed, p = (
        (1.0, [4 / 3, 1 / 3], [4 / 3, 1 / 3])
        if name == "joint"
        else (1.5, [1.0, 0.0], [1.25, 0.25])
    )
    keys = [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, third]]]
    starts = _arrays(p=[[0.0, -1.0]], v=[[-1.0, 0.0]])
    return Toy(
        name,
        TITLES[name],
        _prompt_data(keys, [1.0, -1.0, 1.0]),
        None,
        None,
        starts,
        _arrays(p=p, p_relaxed=relaxed, v=[0.0, 1.0]),
    )


def _losses(C: float) -> Toy:
    data = _prompt_data([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]]], [1.0, 1.0])
    scores = np.array([[0.0, C], [0.0, 1.0]])
    return Toy(
        "losses",
        TITLES["losses"],
        data,
        scores,
        None,
        _arrays(p=[[0.0, 0.0]]),
        _arrays(p=[1.0, 0.0]),
    )


def _plane(name: str) -> Toy:
    if name == "plane":
        tokens = [
            [[-0.9814968, 0.1863952], [-1.1355718, -0.049839072], [-1.4568305, 0.11450518]],
            [[0.6917174, -0.16891584], [0.7323128, -0.017475054], [0.9413471, -0.2896908]],
        ]
        queries = [[0.84501135, 0.5347484], [-0.63626397, -0.7714714]]
        head = np.array([0.92731994, 0.37426966])
        reference = _arrays(
            W=[[2.85369, -2.70294], [5.37124, 5.58053]],
            W_nuclear=[[0.48671, 0.46926], [7.00554, 6.75438]],
        )
    else:
        tokens = [
            [
                [1.0, 0.5],
                [-0.18972462, -0.798354],
                [-0.7976964, 0.30564982],
                [-0.6198048, -0.01682163],
                [-1.1724226, 0.24682678],
            ],
            [
                [1.0, -0.5],
                [-0.757443, 0.10261719],
                [-0.8307859, 0.676377],
                [-0.8131823, 0.00670824],
                [-0.6131634, -0.05462176],
            ],
        ]
        queries = [[-0.53912896, -0.8422232], [0.9525519, 0.30437642]]
        head = np.array([0.9771238, 0.21267143])
        reference = _arrays(
            W=[[0.79255, -1.08647], [-0.63303, -0.34711]],
            W_nuclear=[[0.99375, -1.25966], [-0.13324, -0.25784]],
        )
    data = AttentionData(tokens, [1.0, 1.0], queries)  # type: ignore[arg-type]
    return Toy(
        name,
        TITLES[name],
        data,
        data.tokens @ head,
        head,
        _arrays(W=np.zeros((1, 2, 2))),
        reference,
    )
