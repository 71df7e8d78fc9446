"""What is kept on disk: run folders with their unfinished work, and results under the name of what
decides them.
"""

from attsvm.base.store.entries import entry_path, load_entry, save_entry
from attsvm.base.store.environment import code_digest, environment, versions
from attsvm.base.store.run_folder import (
    RunFolder,
    announce,
    finished_run,
    holds_request,
    read_run,
)

__all__ = [
    "RunFolder",
    "announce",
    "code_digest",
    "entry_path",
    "environment",
    "finished_run",
    "holds_request",
    "load_entry",
    "read_run",
    "save_entry",
    "versions",
]
