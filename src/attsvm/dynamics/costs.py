"""What a step costs, estimated from shapes: microseconds per step and run on one core, fitted to
measurements on one machine.
"""

from __future__ import annotations

from attsvm.data import AttentionData

_GRAM_BYTES = 1 << 30  # no more than this for Gram matrices


def gram_cost(data: AttentionData) -> float | None:
    """A step of :class:`~attsvm.dynamics.gram.GramEngine`; None when its matrices would need more
    than a gigabyte.
    """
    tokens = int(data.lengths.sum(axis=-1).max())
    instances = data.batch_shape[0] if data.batch_shape else 1
    if 8 * instances * tokens**2 > _GRAM_BYTES:
        return None
    return 1e-3 * (200.0 + 12.0 * tokens + 0.08 * tokens**2)


def mirror_cost(data: AttentionData) -> float:
    """A step of :class:`~attsvm.dynamics.mirror_engine.MirrorEngine`, powers not counted."""
    tokens = int(data.lengths.sum(axis=-1).max())
    products = 2 * data.n * data.d_x * data.d_z + 4 * tokens * data.d_x
    return 1e-3 * (60.0 * data.n + 25.0 * tokens + 0.12 * products)


def ragged_cost(data: AttentionData) -> float:
    """A step of :class:`~attsvm.dynamics.ragged.RaggedEngine`."""
    tokens = int(data.lengths.sum(axis=-1).max())
    products = 2 * data.n * data.d_x * data.d_z + 4 * tokens * data.d_x
    return 1e-3 * (3000.0 + 60.0 * data.n + 25.0 * tokens + 0.12 * products)
