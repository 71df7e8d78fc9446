"""SciPy's routines are the same ones whether or not ``scipy.linalg`` is imported."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import numpy as np
import attsvm
from attsvm.native.lapack import lapack_address, lapack_routine

rng = np.random.default_rng(0)
data = attsvm.AttentionData(rng.standard_normal((4, 3, 5)), np.ones(4))
margins = attsvm.selection_margins(data, np.zeros(4, dtype=np.int64))
for norm in ("fro", "nuc", "spec", "l1", "linf", "lp:1.75"):
    attsvm.max_margin(margins, norm)
addresses = {name: lapack_address(name) for name in ("dgemm", "dgesdd")}
routines = {name: lapack_routine(name) for name in ("dpotrf", "dtrsv", "ssyr")}
assert "scipy.linalg" not in sys.modules, "a small programme imports scipy.linalg"

import scipy.linalg

lapack_address.cache_clear()
assert addresses == {name: lapack_address(name) for name in addresses}
factor = scipy.linalg.lapack.dpotrf(4.0 * np.eye(2))[0]
assert (routines["dpotrf"](4.0 * np.eye(2))[0] == factor).all()
assert (routines["dtrsv"](factor, np.ones(2)) == scipy.linalg.blas.dtrsv(factor, np.ones(2))).all()
assert scipy.linalg.cython_blas is sys.modules["scipy.linalg.cython_blas"]
"""


def test_small_programmes_do_without_scipy_linalg() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_threads_may_ask_for_the_first_routine_together() -> None:
    """Each process loads the modules once, so this takes processes of its own."""
    program = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "from attsvm.native.lapack import lapack_address\n"
        "with Pool(8) as pool:\n"
        "    addresses = set(pool.map(lapack_address, ['dgemm'] * 32))\n"
        "assert len(addresses) == 1\n"
    )
    for _ in range(4):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
