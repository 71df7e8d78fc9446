r"""One compiled pass over a list of parameters on the CPU: :math:`y\leftarrow\rho y-\eta g`,
:math:`w=\mathrm{sp}(y,r)`.

Reads the gradient and the dual iterate, writes the dual iterate and the weight: four words per
number. Without a dual iterate it is made from the weight, block by block, and never leaves the
cache. The tensors are handed over as addresses, cut into blocks of equal size, so that many small
ones cost no more than one large one.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.np.numpy_support import carray

from attsvm.jit import fusing_kernel
from attsvm.optim.power_kernels import (
    FloatArray,
    Power,
    image32,
    image64,
    is_special,
    reinterpreting,
)
from attsvm.parallel import parallel_fusing_kernel

IntArray = npt.NDArray[np.int64]

BLOCK = 1 << 11  # numbers: three blocks of float32 stay in the first cache

_float32_at = reinterpreting(types.int64, types.CPointer(types.float32), "inttoptr")  # type: ignore[no-untyped-call]
_float64_at = reinterpreting(types.int64, types.CPointer(types.float64), "inttoptr")  # type: ignore[no-untyped-call]


@parallel_fusing_kernel
def step32(
    g_at: IntArray,
    y_at: IntArray,
    w_at: IntArray,
    sizes: IntArray,
    starts: IntArray,
    owners: IntArray,
    rho: float,
    eta: float,
    inverse: Power,
    forward: Power,
) -> None:  # pragma: no cover - compiled
    """One step of float32 tensors.

    Args:
        g_at: addresses of the gradients.
        y_at: of the dual iterates, zero where a tensor keeps none.
        w_at: of the weights.
        sizes: how many numbers each of these has.
        starts: for every block, the number at which it starts in its tensor.
        owners: for every block, its tensor.
        rho: factor of the dual iterate.
        eta: step length.
        inverse: the power that takes the dual iterate to the weight: how it is computed, and its
            exponent, whole and rest.
        forward: the power that takes the weight to the dual iterate.
    """
    for block in numba.prange(starts.size):
        k = owners[block]
        first = starts[block]
        count = min(BLOCK, sizes[k] - first)
        g = carray(_float32_at(g_at[k] + 4 * first), (count,))
        w = carray(_float32_at(w_at[k] + 4 * first), (count,))
        if y_at[k] == 0:
            y = np.empty(count, np.float32)
            special = 0
            for i in range(count):
                special += is_special(w[i])
            image32(w, y, special, forward[0], forward[1], forward[2])
        else:
            y = carray(_float32_at(y_at[k] + 4 * first), (count,))
        keep, step = np.float32(rho), np.float32(eta)
        if keep != 1.0:  # a loop of its own, so that the product rounds as it does in torch
            for i in range(count):
                y[i] *= keep
        special = 0
        for i in range(count):
            moved = y[i] - step * g[i]
            y[i] = moved
            special += is_special(moved)
        image32(y, w, special, inverse[0], inverse[1], inverse[2])


@parallel_fusing_kernel
def step64(
    g_at: IntArray,
    y_at: IntArray,
    w_at: IntArray,
    sizes: IntArray,
    starts: IntArray,
    owners: IntArray,
    rho: float,
    eta: float,
    inverse: Power,
    forward: Power,
) -> None:  # pragma: no cover - compiled
    """One step of float64 tensors, as :func:`step32`."""
    for block in numba.prange(starts.size):
        k = owners[block]
        first = starts[block]
        count = min(BLOCK, sizes[k] - first)
        g = carray(_float64_at(g_at[k] + 8 * first), (count,))
        w = carray(_float64_at(w_at[k] + 8 * first), (count,))
        if y_at[k] == 0:
            y = np.empty(count, np.float64)
            image64(w, y, forward[0], forward[1], forward[2])
        else:
            y = carray(_float64_at(y_at[k] + 8 * first), (count,))
        if rho != 1.0:
            for i in range(count):
                y[i] *= rho
        for i in range(count):
            y[i] -= eta * g[i]
        image64(y, w, inverse[0], inverse[1], inverse[2])


@fusing_kernel
def written32(y: FloatArray, w: FloatArray, inverse: Power) -> None:  # pragma: no cover - compiled
    """The float32 weights that a step leaves beside the dual iterate ``y``, to the bit."""
    for first in range(0, y.size, BLOCK):
        stop = min(first + BLOCK, y.size)
        special = 0
        for i in range(first, stop):
            special += is_special(y[i])
        image32(y[first:stop], w[first:stop], special, inverse[0], inverse[1], inverse[2])


@fusing_kernel
def written64(y: FloatArray, w: FloatArray, inverse: Power) -> None:  # pragma: no cover - compiled
    """The float64 weights that a step leaves beside the dual iterate ``y``, to the bit."""
    image64(y, w, inverse[0], inverse[1], inverse[2])
