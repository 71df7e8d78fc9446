"""The exceptions of the house.

Every message is one sentence that says what was wrong, where, and what to do.
The command line turns an exception into its ``exit_code`` and prints the sentence.
"""

from __future__ import annotations

__all__ = ["AttsvmError", "InputError", "MissingExtraError", "UnavailableError"]


class AttsvmError(Exception):
    """Base of everything that attsvm raises on purpose.

    Example:
        >>> import attsvm
        >>> try:
        ...     attsvm.parse_norm("lp:0.5")
        ... except attsvm.AttsvmError as error:
        ...     print(error.exit_code, error)
        2 Lp(0.5) is not a norm: the exponent p must be a number with 1 <= p <= inf
    """

    exit_code: int = 1


class InputError(AttsvmError, ValueError):
    """The caller's data or arguments cannot be used as they are.

    Example:
        >>> import attsvm
        >>> attsvm.AttentionData([[[1.0], [2.0]]], labels=[0.0])
        Traceback (most recent call last):
            ...
        attsvm.base.errors.InputError: labels holds 0 at [0]; labels must be -1 or +1 (for 0 ...
    """

    exit_code = 2


class UnavailableError(InputError):
    """Data or a device is needed that is not here; other work can go on without it.

    Example:
        >>> from attsvm.base.errors import InputError, UnavailableError
        >>> issubclass(UnavailableError, InputError)
        True
    """


class MissingExtraError(AttsvmError, ImportError):
    """An optional dependency is needed; the message names the extra to install.

    Example:
        >>> from attsvm.base.errors import MissingExtraError
        >>> print(MissingExtraError("reading Parquet", "pyarrow", "parquet"))
        reading Parquet needs the package pyarrow; install it with: pip install 'attsvm[parquet]'
    """

    exit_code = 2

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}; install it with: pip install 'attsvm[{extra}]'"
        )


def __dir__() -> list[str]:
    return __all__
