"""What is kept: run folders, stages of unfinished work, results under the name of what decides
them.
"""

from attsvm.base.store.code import code_fingerprint
from attsvm.base.store.entries import entry_path, load_entry, save_entry
from attsvm.base.store.environment import environment, versions
from attsvm.base.store.folder import RunFolder, announce, finished_run, read_run
from attsvm.base.store.json_files import fingerprint, read_json, write_json
from attsvm.base.store.stages import Stages, flatten, gather, remove_stages

__all__ = [
    "RunFolder",
    "Stages",
    "announce",
    "code_fingerprint",
    "entry_path",
    "environment",
    "fingerprint",
    "finished_run",
    "flatten",
    "gather",
    "load_entry",
    "read_json",
    "read_run",
    "remove_stages",
    "save_entry",
    "versions",
    "write_json",
]
