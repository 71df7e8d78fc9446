"""The command line as a process: ``attsvm``, ``python -m attsvm``."""

import atexit
import os
import sys

from attsvm.base.interruption import end_on_signals, leave_to_the_system


def main() -> int:
    """Run the command that the process was started with, and return its exit code.

    Signals are heeded before anything else is imported, and until the process is gone.
    """
    _open_standard_streams()
    end_on_signals()
    atexit.register(leave_to_the_system)  # what is registered first is called last
    from attsvm.cli import main as run

    return run()


def _open_standard_streams() -> None:
    """Where a standard stream is closed, a file that is opened later must not take its place: it
    would hold what compiled code prints.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


if __name__ == "__main__":
    sys.exit(main())
