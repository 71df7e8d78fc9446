"""Bags with one planted witness: who decides is known, so a selection can be graded."""

from __future__ import annotations

import numpy as np

from attsvm.bags import Bags
from attsvm.errors import InputError

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
    place = rng.permuted(np.tile(np.arange(instances), (n, 1)), axis=1)[:, :3]
    first, second, third = place.T
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
