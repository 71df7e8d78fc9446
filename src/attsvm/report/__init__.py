"""The report of a run: every figure, and one self-contained page that opens without a network.

``write(folder)`` draws both from ``run.json``, ``arrays.safetensors`` and ``examples.json`` (see
``docs/run-folder.md``). Nothing in it depends on the clock or on a random number: two writes of one
folder give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm.base.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attsvm.datasets.attention_data import AttentionData
    from attsvm.report.explorer.notebook import Explorer


def write(folder: str | Path, run: dict[str, Any] | None = None) -> Path:
    """Write ``figures/*.svg``, ``figures/*.png`` and ``report.html`` of a finished run.

    Args:
        folder: a run folder, as ``attsvm fit`` leaves it. Files of an earlier report are replaced.
        run: the content of ``run.json`` when the file is yet to be written; it comes last in a run.
            Default: read it.

    Returns:
        The path of ``report.html``.

    Raises:
        InputError: the folder holds no finished run, or one in a format that this version does not
            read.
    """
    # matplotlib and jinja2 are needed only from here on
    from attsvm.report.bags_page import write_again
    from attsvm.report.page import write_report

    if run is None and (page := write_again(Path(folder))) is not None:
        return page
    return write_report(Path(folder), run)


def explore(
    data: AttentionData,
    tokens: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    p: float = 2.0,
) -> Explorer:
    r"""A page to play with: the sequences of ``data`` in the plane, the prompt of largest margin in
    :math:`\|\cdot\|_p`, and the descent that turns towards it.

    A notebook shows it as it is; ``.save("explorer.html")`` writes it as one file that loads
    nothing.

    Args:
        data: up to 12 sequences of up to 12 tokens with two features, and queries of one: the logit
            of a token is :math:`z_i\,x^\top w` with one prompt :math:`w` for all.
        tokens: ``(n,)``, the token to be chosen in each sequence; by default the one with the
            highest score, without scores the first.
        scores: ``(n, T)``, see :func:`attsvm.token_scores`; by default 1 for the chosen token and 0
            for the others.
        p: exponent of the norm, 1.1 to infinity.

    Raises:
        InputError: tokens that are not in the plane, queries with several features (each sequence
            then has a prompt of its own, which one picture cannot show), more than a picture holds,
            a sequence with nothing to choose, or arrays that do not fit the data.

    Example:
        >>> import attsvm
        >>> tokens = attsvm.datasets.unit_sphere(n=2, T=3, d=2, seed=0)[0].tokens
        >>> data = attsvm.AttentionData(tokens, labels=[1, -1], queries=[[1.0], [1.0]])
        >>> attsvm.report.explore(data, tokens=[0, 1])
        Explorer(2 sequences, 6 tokens, p=2.0); .save('explorer.html') writes a page
    """
    from attsvm.report.explorer import state_of
    from attsvm.report.explorer.notebook import Explorer

    if data.queries.shape[-1] != 1:
        raise InputError(
            f"the queries have {data.queries.shape[-1]} features, so every sequence has a prompt of"
            " its own, and the explorer draws one for all; give queries=numpy.ones((n, 1)) to see"
            " the best prompt for all"
        )
    return Explorer(state_of(data, tokens, scores, p))


__all__ = ["explore", "write"]
