"""Slides of patches as an encoder may see them: tissue types, correlated background, a shift of
stain for each slide, and a few patches of tumour in the positive ones.
"""

from __future__ import annotations

import numpy as np

from attsvm.datasets.bags import Bags
from attsvm.datasets.rows import ListedRows

SIZES = {"60 x 200 x 128": (60, 200, 128), "100 x 500 x 384": (100, 500, 384)}
"""Slides, mean number of patches, features."""


def slides(
    n: int,
    patches: int,
    d: int,
    seed: int,
    *,
    tumour: tuple[float, float] = (0.005, 0.10),
    shift: float = 8.0,
    stain: float = 0.5,
) -> Bags:
    """``n`` slides, half of them positive, each with half to one and a half times ``patches``.

    A patch is one of eight tissue types, of which every slide has a mixture of its own, with noise
    of 32 correlated directions and of all features, and the stain of its slide. In a positive slide
    a share of the patches, drawn between both ends of ``tumour`` on a logarithmic scale, moves by
    ``shift`` along one direction, more or less. Types and directions are those of the world, the
    same for every seed.

    Returns:
        bags in single precision with labels -1 and +1 and instance labels: 1 for tumour.
    """
    world = np.random.default_rng([99, d])
    spread = world.normal(size=(32, d)).astype(np.float32) * np.float32(1.2 / np.sqrt(32))
    tissues = (0.7 * world.normal(size=(8, d))).astype(np.float32)
    direction = world.normal(size=d)
    direction *= shift / np.linalg.norm(direction)
    generator = np.random.default_rng([seed, 1])
    positive = generator.permutation(np.arange(n) < n // 2)
    tables, known = [], []
    for is_positive in positive:
        count = int(patches * generator.uniform(0.5, 1.5))
        tissue = generator.choice(8, size=count, p=generator.dirichlet(np.ones(8)))
        table = tissues[tissue]
        table += generator.normal(size=(count, 32)).astype(np.float32) @ spread
        table += np.float32(0.7) * generator.standard_normal((count, d), dtype=np.float32)
        table += (stain * generator.normal(size=d)).astype(np.float32)
        is_tumour = np.zeros(count, dtype=np.int64)
        if is_positive:
            share = np.exp(generator.uniform(*np.log(tumour)))
            chosen = generator.choice(count, max(round(share * count), 1), replace=False)
            is_tumour[chosen] = 1
            lengths = generator.uniform(0.7, 1.3, size=(len(chosen), 1))
            table[chosen] += (lengths * direction).astype(np.float32)
        tables.append(table)
        known.append(is_tumour)
    rows = ListedRows(tables)
    labels = np.where(positive, 1.0, -1.0)
    return Bags(rows, rows.offsets, labels, np.arange(len(rows)), np.concatenate(known))
