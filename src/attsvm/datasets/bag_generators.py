"""Bags whose deciding instances are known, so that a selection can be graded: planted witnesses,
and the tests of the multiple-instance assumption.

Those tests are bags that only a model which keeps the assumption classifies: the three algorithmic
unit tests of Raff and Holt, *Reproducibility in Multiple Instance Learning: A Case For Algorithmic
Unit Tests*, NeurIPS 2023.

The standard assumption says that a bag is positive because of an instance that is there, never
because of one that is missing. Each test plants an easy sign of the *negative* class into the
training bags and turns it round in the test bags. A model that learned "no such sign, so positive"
has a test AUC near 0, one that cannot have learned it keeps its training AUC.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags

TESTS = ("single concept", "several concepts", "false frequency")
_POISON, _NARROW = -10.0, 0.1
WITNESSES = {
    "linear": "the witness lies far along one direction",
    "decoy": "the same, and every bag has an instance that lies twice as far along another one",
    "marked": (
        "every bag has a marked instance; its side of a second direction is the label, and"
        " unmarked instances lie on both sides"
    ),
    "conjunction": (
        "the witness has two properties; every bag has an instance with each of them alone"
    ),
    "shell": "the witness is longer than the others, in any direction",
}


def planted_witnesses(
    kind: str, n: int, instances: int, seed: int, *, d: int = 20, strength: float = 6.0
) -> Bags:
    r"""``n`` bags, every second one positive, of ``instances`` standard normal instances with one
    witness in each positive bag, at a random place.

    With orthonormal directions :math:`u, w` drawn anew for each seed and the strength :math:`s`:

    * ``linear``: the witness gets :math:`su`;
    * ``decoy``: the witness gets :math:`su`, and one other instance of every bag :math:`2sw`;
    * ``marked``: the witness gets :math:`sw+su`, an instance of a negative bag :math:`sw-su`, and
      two more of every bag :math:`su` and :math:`-su`;
    * ``conjunction``: the witness gets :math:`s(u+w)`, and two others of every bag :math:`su` and
      :math:`sw`;
    * ``shell``: the witness has the length :math:`1.75\sqrt d` and a uniform direction.

    Args:
        kind: one of :data:`WITNESSES`.
        n: bags.
        instances: instances of each bag, at least 4.
        seed: equal seeds give equal bits; training and test bags must share one seed, because it
            draws the directions: make them together and split them.
        d: features, at least 2.
        strength: see above, in standard deviations of the background; not used by ``shell``.

    Returns:
        bags with labels -1 and +1 and instance labels: 1 for the witness, 0 for all others.

    Raises:
        InputError: an unknown kind, or sizes too small.

    Example:
        >>> from attsvm.datasets import planted_witnesses
        >>> bags = planted_witnesses("linear", n=4, instances=6, seed=0)
        >>> bags.labels.tolist(), bags.rows.shape
        ([1.0, -1.0, 1.0, -1.0], (24, 20))
    """
    if kind not in WITNESSES:
        raise InputError(f"there is no kind {kind!r}; choose one of {', '.join(WITNESSES)}")
    if n < 2 or instances < 4 or d < 2:
        raise InputError(
            f"{n} bags of {instances} instances with {d} features are too small; give at least 2,"
            " 4 and 2"
        )
    rng = np.random.default_rng([seed, list(WITNESSES).index(kind), instances])
    u, w = strength * np.linalg.qr(rng.standard_normal((d, 2)))[0].T
    rows = rng.standard_normal((n, instances, d))
    bag = np.arange(n)
    positive = bag % 2 == 0
    positions = rng.permuted(np.tile(np.arange(instances), (n, 1)), axis=1)[:, :3]
    first, second, third = positions.T
    if kind in ("linear", "decoy"):
        rows[bag[positive], first[positive]] += u
    if kind == "decoy":
        rows[bag, second] += 2 * w
    if kind == "marked":
        rows[bag, first] += w + np.where(positive, 1.0, -1.0)[:, None] * u
        rows[bag, second] += u
        rows[bag, third] -= u
    if kind == "conjunction":
        rows[bag[positive], first[positive]] += u + w
        rows[bag, second] += u
        rows[bag, third] += w
    if kind == "shell":
        chosen = rows[bag[positive], first[positive]]
        length = 1.75 * np.sqrt(d) / np.linalg.norm(chosen, axis=1, keepdims=True)
        rows[bag[positive], first[positive]] = chosen * length
    known = np.zeros((n, instances), dtype=np.int64)
    known[bag[positive], first[positive]] = 1
    return Bags(
        rows.reshape(-1, d),
        np.arange(n + 1) * instances,
        np.where(positive, 1.0, -1.0),
        np.arange(n * instances),
        known.reshape(-1),
    )


def assumption_test(
    name: str, n: int, split: Literal["train", "test"], seed: int, *, d: int = 16
) -> Bags:
    r"""``n`` bags of one test, half of them positive, the positive ones first.

    Instances are drawn from :math:`\mathcal N(\mu\mathbf 1, s^2 I)`; the background is
    :math:`\mu=0, s=1`, the poison :math:`\mu=-10, s=0.1`, one instance in every *negative training*
    bag and in every *positive test* bag.

    * ``single concept``: a positive bag has 1 to 4 instances of :math:`\mu=0, s=3` or
      :math:`\mu=1, s=1`; 10 of the background; poison.
    * ``several concepts``: concepts :math:`\mu=2` and :math:`\mu=3`, :math:`s=0.1`. A positive bag
      has 1 to 4 of both, a negative one a single instance of either; 1 to 10 of the background;
      poison. No single instance decides: the test belongs to the *threshold* assumption, and a
      model needs one witness of each concept.
    * ``false frequency``: the same concepts and no poison. A positive bag has 1 or 2 of both, a
      negative one 1 or 2 of either in training and 35 to 45 in the test.

    Ranges include both ends. The version of torchmil 1.0.2 (``SCStandardMILDataset``,
    ``MCStandardMILDataset``, ``FalseFrequencyMILDataset``) leaves the upper end out, so that the
    negative bags of its false frequency always hold the concept :math:`\mu=2` and the other one
    decides alone.

    Args:
        name: one of the three.
        n: bags, at least two.
        split: the training or the test bags; they are drawn independently.
        seed: equal seeds give equal bits.
        d: features; 16 in the paper as torchmil reads it.

    Returns:
        bags with labels -1 and +1 and instance labels: 1 for a concept, 0 for the background, -1
        for poison.

    Raises:
        InputError: an unknown name or split, or sizes too small.
    """
    if name not in TESTS or split not in ("train", "test"):
        raise InputError(
            f"there is no test {name!r} in a split {split!r}; the tests are {', '.join(TESTS)}, the"
            " splits train and test"
        )
    if n < 2 or d < 1:
        raise InputError(f"{n} bags of {d} features are too few; give at least 2 and 1")
    rng = np.random.default_rng([seed, TESTS.index(name), split == "test"])
    labels = np.where(np.arange(n) < n // 2, 1.0, -1.0)
    bags = [_bag(rng, name, split == "test", label > 0) for label in labels]
    lengths = np.array([len(kinds) for _, _, kinds in bags])
    mean, deviation, kinds = map(np.concatenate, zip(*bags, strict=True))
    rows = mean[:, None] + deviation[:, None] * rng.standard_normal((len(mean), d))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Bags(rows, offsets, labels, np.arange(len(rows)), kinds)


def _bag(
    rng: np.random.Generator, name: str, test: bool, positive: bool
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Mean, deviation and kind of each instance of one bag."""
    if name == "single concept":
        wide = rng.integers(2, size=rng.integers(1, 5) if positive else 0) == 0
        concept = np.where(wide, 0.0, 1.0)
        spread = np.where(wide, 3.0, 1.0)
        background = 10
    else:
        if name == "several concepts":
            count = (
                rng.integers(1, 5, size=2) if positive else np.eye(2, dtype=int)[rng.integers(2)]
            )
        else:
            low, high = (35, 46) if test and not positive else (1, 3)
            count = rng.integers(low, high, size=2)
            if not positive:
                count[rng.integers(2)] = 0
        concept = np.repeat([2.0, 3.0], count)
        spread = np.full(len(concept), _NARROW)
        background = int(rng.integers(1, 11))
    poison = int(name != "false frequency" and positive == test)
    sizes = [len(concept), background, poison]
    mean = np.concatenate([concept, np.zeros(background), np.full(poison, _POISON)])
    deviation = np.concatenate([spread, np.ones(background), np.full(poison, _NARROW)])
    return mean, deviation, np.repeat([1, 0, -1], sizes)
