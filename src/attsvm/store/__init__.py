"""What is kept: run folders, stages of unfinished work, results under the name of what decides
them.
"""

from attsvm.store.environment import environment, versions
from attsvm.store.folder import RunFolder, announce, finished_run, read_run
from attsvm.store.json_files import fingerprint, read_json, write_json
from attsvm.store.ledger import in_the_way
from attsvm.store.stages import Stages, flatten, gather, remove_stages

__all__ = [
    "RunFolder",
    "Stages",
    "announce",
    "environment",
    "fingerprint",
    "finished_run",
    "flatten",
    "gather",
    "in_the_way",
    "read_json",
    "read_run",
    "remove_stages",
    "versions",
    "write_json",
]
