"""Every test: fixed hypothesis profile, one thread per numerical library, nothing written outside
tmp_path.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis

from attsvm import kernel_cache

kernel_cache.folder()  # found before a test looks for caches elsewhere

hypothesis.settings.register_profile(
    "attsvm",
    derandomize=True,  # the same examples on every machine: a red run is reproducible
    deadline=None,  # the first call of a compiled kernel may take seconds
    max_examples=50,
    print_blob=True,
)
hypothesis.settings.load_profile("attsvm")
