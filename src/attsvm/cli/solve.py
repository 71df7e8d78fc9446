"""``attsvm solve``: only the max-margin programme, with its certificate."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.cli.arguments import add_data, add_output, data_options, positive_float
from attsvm.cli.output import show, show_json


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "solve",
        help="solve the max-margin programme of a token selection, and certify the solution",
        description=(
            "Minimise ||W|| subject to (x_selected - x_t)' W z >= 1 for every sequence and every"
            " other token t, in any norm, and certify the solution."
        ),
    )
    add_data(parser)
    parser.add_argument(
        "--programme",
        choices=_PROGRAMMES,
        default="selection",
        help=(
            "selection: W with the queries of the data; prompt: a vector p instead of W z; decoder:"
            " labels on the selected tokens; sequence, causal: every position is a query (tokens:"
            " an (n, T) array of the file) (default selection)"
        ),
    )
    parser.add_argument(
        "--tokens",
        default="optimal",
        metavar="SELECTION",
        help=(
            "positions separated by commas (one per sequence, from 0), `optimal` (highest score"
            " under the head; the file's array v, or the head of a named data set), `first`, or the"
            " name of an integer array in the file (default optimal)"
        ),
    )
    parser.add_argument("--norm", default="fro", help="see `attsvm list` (default fro)")
    parser.add_argument(
        "--slack", type=positive_float, metavar="C", help="soft margin with penalty C"
    )
    parser.add_argument(
        "--tol",
        type=positive_float,
        help="largest relative duality gap (default 1e-9; 1e-6 for nuc and spec)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help=(
            "memory limit for a folder of .npy files (X.npy, or X-0.npy, X-1.npy and so on), which"
            " is read in parts; such as 500MB (default 2GiB)"
        ),
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write W, dual and margins to this .npz or .safetensors file",
    )
    add_output(parser)
    parser.set_defaults(run=run)


_WRITTEN = ("W", "dual", "sequence", "token", "selected", "margins")
_NUMBERS = "numbers"  # of the sequences, where the rows are those of a working set
_PROGRAMMES = ("selection", "prompt", "decoder", "sequence", "causal")
# summary entries that have lines of their own
_ELSEWHERE = ("message", "selected", "support")


def _refuse_files_of_others(path: Path) -> None:
    """Refuse to write over anything but an earlier solution."""
    from attsvm.base.files import load_arrays

    if not path.is_file():
        return
    try:
        names = set(load_arrays(path))
    except InputError:
        names = set()
    if names - {_NUMBERS} != set(_WRITTEN):
        raise InputError(
            f"{path} exists and was not written by attsvm solve; choose another name for --out"
        )


def run(options: argparse.Namespace) -> int:
    """Solve and print."""
    from attsvm.base.files import check_destination, is_folder, save_arrays
    from attsvm.margins import Margins
    from attsvm.norms import parse_norm
    from attsvm.solvers import max_margin, max_margin_blocks

    norm = parse_norm(options.norm)
    if options.out is not None:
        check_destination(options.out)  # before the work, not after it
        _refuse_files_of_others(options.out)
    folder = Path(options.data)
    blocks = None
    if is_folder(folder) and any(folder.glob("*.npy")):
        blocks = _of_blocks(options, folder)
        if options.slack is not None:
            raise InputError("slack is not for programmes of blocks; leave it out")
        solution = max_margin_blocks(
            Margins.from_blocks(blocks), norm, tol=options.tol, memory=options.memory
        )
    elif options.memory is not None:
        if not folder.exists():
            _read(options)  # what is not there is told first
        raise InputError(
            "--memory is for data that are read in parts; give a folder of .npy files, an array"
            " each"
        )
    else:
        data, extras = _read(options)
        programme = _programme(options.programme, data, _tokens(options.tokens, data, extras))
        solution = max_margin(programme, norm, slack=options.slack, tol=options.tol)
    margins = solution.margins
    if options.out is not None:
        arrays = (solution.W, solution.dual, margins.sequence, margins.token, margins.selected)
        written = dict(zip(_WRITTEN, (*arrays, margins(solution.W)), strict=True))
        if margins.numbers is not None:
            written[_NUMBERS] = margins.numbers
        save_arrays(written, options.out)
    summary = _summary(solution)
    if blocks is not None:  # margins are those of the last working set
        summary |= {"sequences": blocks.n, "selected": None}
    if options.json:
        show_json(summary)
    else:
        show(solution.message)
        report = {
            name: value
            for name, value in summary.items()
            if value is not None and name not in _ELSEWHERE
        }
        width = max(map(len, report))
        for name, value in report.items():
            show(f"  {name:<{width}}  {value}")
        if options.programme in ("selection", "prompt"):
            numbers = range(margins.n) if margins.numbers is None else margins.numbers.tolist()
            selected = dict(zip(numbers, margins.selected.tolist(), strict=True))
            for sequence, token in summary["support"][:5]:
                show(f"  sequence {sequence}: token {selected[sequence]} must beat token {token}")
    return 3 if solution.status in ("inaccurate", "almost infeasible") else 0


def _read(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from attsvm.base.files import SUFFIXES

    path = Path(options.data)
    if path.suffix.lower() in SUFFIXES:
        from attsvm.datasets.attention_data import AttentionData

        return AttentionData.read(path)
    from attsvm.datasets import instance, load

    named = instance(options.data)
    if named is not None:
        return named
    dataset = load(options.data, **data_options(options))
    last = len(dataset.class_names) - 1  # of three classes or more against the others
    signs = [1.0 if label == last else -1.0 for label in dataset.labels.tolist()]
    return dataset.encode(range(len(dataset))).data(signs), {}


def _of_blocks(options: argparse.Namespace, folder: Path) -> Any:
    """The selections of arrays that are read in parts.

    Raises:
        InputError: an option that they do not take, or no selection.
    """
    import numpy as np

    from attsvm.margins import MappedSelections

    if options.programme != "selection":
        raise InputError(
            f"--programme {options.programme} reads all data at once; give a file instead of a"
            " folder"
        )
    selection = {"first": _first, "optimal": _first}.get(options.tokens, options.tokens)
    data = MappedSelections(folder, selection)
    if options.tokens == "optimal":
        missing = [name for name in ("v", "y") if name not in data.names]
        if missing:
            raise InputError(
                f"--tokens optimal needs an array {' and an array '.join(missing)} beside X; store"
                " head and labels, or name the array of the selected tokens with --tokens"
            )
        head = np.asarray(data.whole("v"), dtype=np.float64)
        data = MappedSelections(folder, partial(_optimal, head))
    return data


def _first(arrays: dict[str, Any]) -> Any:
    """The first visible token of each sequence of a block."""
    import numpy as np

    if "mask" not in arrays:
        return np.zeros(len(arrays["X"]), dtype=np.int64)
    return np.argmax(arrays["mask"], axis=1)


def _optimal(head: Any, arrays: dict[str, Any]) -> Any:
    """The highest score under the head of each sequence of a block."""
    from attsvm.datasets.attention_data import AttentionData
    from attsvm.margins import optimal_tokens

    mask: Any = arrays.get("mask")
    return optimal_tokens(AttentionData(arrays["X"], arrays["y"], arrays["Z"], mask), head)


def _programme(name: str, data: Any, tokens: Any) -> Any:
    from attsvm.margins import decoder_margins, prompt_margins, selection_margins, sequence_margins

    if name in ("sequence", "causal"):
        return sequence_margins(data, tokens, causal=name == "causal")
    return {"selection": selection_margins, "prompt": prompt_margins, "decoder": decoder_margins}[
        name
    ](data, tokens)


def _tokens(selection: str, data: Any, extras: dict[str, Any]) -> Any:
    import numpy as np

    from attsvm.margins import optimal_tokens

    if selection == "optimal":
        # a toy whose head reads what attention does not see
        if "v" not in extras and "scores" in extras:
            return np.argmax(extras["scores"], axis=-1)
        if "v" not in extras:
            raise InputError(
                "--tokens optimal needs a head, an array v of shape (d_x,) in an .npz or"
                " .safetensors file; add it, or name the tokens with --tokens, such as first"
            )
        try:
            return optimal_tokens(data, extras["v"])
        except InputError as error:
            name, _, rest = str(error).partition(" ")
            raise InputError(f"{'v' if name == 'head' else name} {rest}") from None
    if selection == "first":
        return np.argmax(data.mask, axis=-1)
    if selection in extras:
        return extras[selection]
    try:
        return np.array([int(token) for token in selection.split(",")], dtype=np.int64)
    except (ValueError, OverflowError):
        known = ", ".join(sorted(extras)) or "no further arrays"
        raise InputError(
            f"--tokens {selection!r} is neither positions, nor `optimal` or `first`, nor an array"
            f" of the file ({known})"
        ) from None


def _summary(solution: Any) -> dict[str, Any]:
    finite = {
        name: value if value < float("inf") else None
        for name, value in (("norm", solution.norm), ("gap", solution.gap))
    }
    return {
        "status": solution.status,
        **finite,
        "margin": solution.margin,
        "violation": solution.violation if solution.violation < float("inf") else None,
        "tol": solution.tol,
        "slack": solution.slack,
        "sequences": solution.margins.n,
        "constraints": solution.constraints or solution.margins.m,
        "passes": solution.passes,
        "support_constraints": len(solution.support),
        "rank": solution.rank,
        "rank_bound": solution.rank_bound,
        "unique": solution.unique,
        "certificate_residual": (
            solution.farkas_residual() if "infeasible" in solution.status else None
        ),
        "solver": solution.solver,
        "iterations": solution.iterations,
        "selected": solution.margins.selected.tolist(),
        "support": solution.support_tokens().tolist(),
        "message": solution.message,
    }
