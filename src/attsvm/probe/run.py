"""A probe from a model and a file of texts to a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attsvm.errors import InputError
from attsvm.files import atomic_write, opened
from attsvm.geometry import parse_norm
from attsvm.probe.audit import Audit, Null, audit
from attsvm.probe.capture import Recording, capture
from attsvm.probe.page import detail, headline, page
from attsvm.store import RunFolder, environment, finished_run
from attsvm.store.folder import FORMAT

DEMO = "demo"


@dataclass(frozen=True)
class Request:
    """What to probe.

    Attributes:
        model: a folder, a hub name, or ``demo``.
        text: a file with a text per line; ``None`` for the demo's own story.
        norms, nulls, threshold, queries, seed: see :func:`~attsvm.probe.audit`.
        texts, tokens: the most of each that are read.
    """

    model: str
    text: Path | None = None
    norms: tuple[str, ...] = ("fro", "nuc")
    nulls: tuple[Null, ...] = ("heads", "permuted")
    texts: int = 16
    tokens: int = 256
    threshold: float = 0.5
    queries: int = 80
    seed: int = 0


def probe(
    request: Request,
    folder: Path,
    *,
    overwrite: bool = False,
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run the model, audit its heads, write ``run.json`` and ``report.html``.

    Nothing of the model is written but statistics and names, nothing of the texts but the tokens
    that the page shows.

    Returns:
        The content of ``run.json``.

    Raises:
        InputError: a model that cannot be loaded or seen into, a text that is empty, a folder that
            holds something else.
    """
    for each in request.norms:
        parse_norm(each)
    lines = _lines(request)
    told = {
        "command": "probe",
        **asdict(request),
        "text": None if request.text is None else str(request.text),
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }
    if finished := finished_run(folder, told):
        return finished
    recording = record(request, lines)  # whatever is refused is refused before a folder is made
    with RunFolder(folder, told, files=["report.html"], overwrite=overwrite) as run:
        found = audit(
            recording,
            request.norms,
            request.nulls,
            threshold=request.threshold,
            most=request.queries,
            seed=request.seed,
            progress=progress,
        )
        content = page(found, request.model, command)
        with atomic_write(folder / "report.html") as partial:
            partial.write_text(content, encoding="utf-8")
        result = {
            "format": FORMAT,
            "request": told,
            "environment": environment(),
            "headline": headline(found),
            "detail": detail(found),
            "heads": _finite(found),
        }
        return run.finish(result)


def record(request: Request, lines: Sequence[str]) -> Recording:
    """The attention of the model on these texts."""
    if request.model == DEMO:
        from attsvm.probe.demo import Pieces, Stories

        stories, pieces = Stories().eval(), Pieces()
        batches = [torch.tensor([pieces(line)[: request.tokens]]) for line in lines] or [
            stories.generate(min(request.tokens, 200))
        ]
        with torch.no_grad(), capture(stories) as recording:
            for ids in batches:
                stories(ids)
        return recording.name_tokens(pieces)
    model, tokenizer = _load(request.model)
    with torch.no_grad(), capture(model) as recording:
        for i, line in enumerate(lines):
            batch = tokenizer(line, return_tensors="pt", truncation=True, max_length=request.tokens)
            if batch["input_ids"].shape[1] < 2:
                raise InputError(
                    f"line {i + 1} of {request.text} has fewer than two tokens; give texts in which"
                    " a query has something to select"
                )
            model(**batch)
    return recording.name_tokens(tokenizer)


def _load(name: str) -> tuple[Any, Any]:
    try:
        import transformers
    except ImportError:
        raise InputError(
            "probing a Hugging Face model needs transformers: pip install 'attsvm[hub]'; or probe"
            " the model that comes with attsvm: attsvm probe demo"
        ) from None
    quiet: Any = transformers.utils.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModel.from_pretrained(name).eval()
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"the model {name} cannot be loaded ({reason[:160]}); give a folder with config.json,"
            " weights and tokenizer, or a name on the hub"
        ) from error
    for key, value in model.named_parameters():
        if not torch.isfinite(value).all():
            raise InputError(f"the weights {key} of {name} hold NaN or infinity; save them again")
    return model, tokenizer


def _lines(request: Request) -> list[str]:
    if request.text is None:
        if request.model != DEMO:
            raise InputError("give text, a UTF-8 file with a text per line")
        return []
    with opened(request.text) as file:
        raw = file.read()
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{request.text} is not UTF-8 ({error}); convert it first") from None
    lines = [line.strip() for line in content.splitlines() if line.strip()][: request.texts]
    if not lines:
        raise InputError(f"{request.text} holds no text; give a text per line")
    return lines


def _finite(found: Audit) -> list[dict[str, Any]]:
    """The table, ``None`` for what is not a number."""
    return [
        {
            key: None if isinstance(value, float) and value != value else value
            for key, value in row.items()
        }
        for row in found.table()
    ]
