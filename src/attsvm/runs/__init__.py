"""Run folders: who owns one, what is finished in it, and how a killed run goes on."""

from attsvm.runs.environment import environment
from attsvm.runs.folder import RunFolder, fingerprint, finished_run, read_json, read_run, write_json
from attsvm.runs.stages import Stages

__all__ = [
    "RunFolder",
    "Stages",
    "environment",
    "fingerprint",
    "finished_run",
    "read_json",
    "read_run",
    "write_json",
]
