"""The exceptions of the house.

Every message is one sentence that says what was wrong, where, and what to do.
The command line turns an exception into its ``exit_code`` and prints the sentence.
"""

from __future__ import annotations

__all__ = ["AttsvmError", "InputError", "MissingExtraError", "UnavailableError"]


class AttsvmError(Exception):
    """Base of everything that attsvm raises on purpose."""

    exit_code: int = 1


class InputError(AttsvmError, ValueError):
    """The caller's data or arguments cannot be used as they are."""

    exit_code = 2


class UnavailableError(InputError):
    """What was asked for needs data or a device that is not here; other work can go on without
    it.
    """


class MissingExtraError(AttsvmError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""

    exit_code = 2

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}; install it with: pip install 'attsvm[{extra}]'"
        )


def __dir__() -> list[str]:
    return __all__
