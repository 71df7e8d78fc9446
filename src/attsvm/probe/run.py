"""A probe from models and a file of texts to a run folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attsvm.errors import InputError
from attsvm.files import opened
from attsvm.geometry import parse_norm
from attsvm.probe.audit import audit
from attsvm.probe.audit_folder import PAGE, write
from attsvm.probe.capture import Recording, capture
from attsvm.probe.checkpoints import Checkpoints
from attsvm.probe.null_weights import Null
from attsvm.store import RunFolder, finished_run

DEMO = "demo"


@dataclass(frozen=True)
class Request:
    """What to probe.

    Attributes:
        models: folders, hub names, or ``demo``; several are checkpoints of one training, by step.
        text: a file with a text per line; ``None`` for the demo's own story.
        norms, nulls, threshold, queries, draws, seed: see :func:`~attsvm.probe.audit`.
        texts, tokens: the most of each that are read.
    """

    models: tuple[str, ...]
    text: Path | None = None
    norms: tuple[str, ...] | None = None
    nulls: tuple[Null, ...] = ("heads", "permuted")
    texts: int = 16
    tokens: int = 256
    threshold: float = 0.5
    queries: int = 80
    draws: int = 3
    seed: int = 0


def probe(
    request: Request,
    folder: Path,
    *,
    overwrite: bool = False,
    command: str = "",
    jobs: int = 1,
    executor: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run the models, audit their heads, write ``run.json`` and ``report.html``.

    Nothing of a model is written but statistics and names, nothing of the texts but the tokens
    that the page shows. ``jobs`` and ``executor``: who looks at the heads, see
    :func:`~attsvm.probe.audit`; the models run in this process.

    Returns:
        The content of ``run.json``.

    Raises:
        InputError: a model that cannot be loaded or seen into, a text that is empty, a folder that
            holds something else.
    """
    for each in request.norms or ():
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
    models = _steps(request.models)
    # whatever is refused is refused before a folder is made
    recordings = {step: record(request, name, lines) for step, name in list(models.items())[:1]}
    with RunFolder(folder, told, files=[PAGE], overwrite=overwrite) as run:
        audits = {}
        for done, (step, name) in enumerate(models.items()):
            found = audit(
                recordings.pop(step) if step in recordings else record(request, name, lines),
                request.norms,
                request.nulls,
                threshold=request.threshold,
                most=request.queries,
                draws=request.draws,
                seed=request.seed,
                jobs=jobs,
                executor=executor,
                progress=_part(progress, done, len(models)),
            )
            found.recording = replace(found.recording, layers=[])  # of many models, little is kept
            audits[step] = found
        title = ", ".join(request.models)
        if len(audits) == 1:
            return write(run, found, found.table(), told, title, command)
        training = Checkpoints(audits)
        return write(run, training.audits, training.table(), told, title, command)


def _part(
    progress: Callable[[int, int], None] | None, done: int, models: int
) -> Callable[[int, int], None] | None:
    """Progress of one of several models."""
    if progress is None:
        return None
    return lambda heads, total: progress(done * total + heads, models * total)


def _steps(models: Sequence[str]) -> dict[int, str]:
    """Models by the step that their folders are named after, else by their order.

    A folder that is no model itself but holds ``checkpoint-N`` folders stands for these.
    """
    names: list[str] = []
    for model in models:
        named = [each for each in Path(model).glob("checkpoint-*") if _step(each) is not None]
        inside = [] if (Path(model) / "config.json").is_file() else named
        names += map(str, inside) if inside else [model]
    steps = [_step(Path(name)) for name in names]
    if len(names) > 1 and DEMO in names:
        raise InputError("'demo' is one model; give it alone, or give checkpoints in folders")
    if None in steps or len(set(steps)) < len(steps):
        return dict(enumerate(names, start=1))
    return dict(
        sorted((step, name) for step, name in zip(steps, names, strict=True) if step is not None)
    )


def _step(folder: Path) -> int | None:
    found = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(found[1]) if found else None


def record(request: Request, name: str, lines: Sequence[str]) -> Recording:
    """The attention of one of the models on these texts."""
    if name == DEMO:
        from attsvm.probe.demo import Pieces, Stories

        stories, pieces = Stories().eval(), Pieces()
        batches = [torch.tensor([pieces(line)[: request.tokens]]) for line in lines] or [
            stories.generate(min(request.tokens, 200))
        ]
        with torch.no_grad(), capture(stories) as recording:
            for ids in batches:
                stories(ids)
        return recording.name_tokens(pieces)
    model, tokenizer = _load(name)
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
        tokenizer = _tokenizer(transformers.AutoTokenizer, name)
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


def _tokenizer(auto: Any, name: str) -> Any:
    """That of the folder, or of the folder around a checkpoint, which often comes without."""
    around = Path(name).parent
    try:
        return auto.from_pretrained(name)
    except (OSError, ValueError):
        if _step(Path(name)) is None or not (around / "tokenizer_config.json").is_file():
            raise
        return auto.from_pretrained(str(around))


def _lines(request: Request) -> list[str]:
    if request.text is None:
        if request.models != (DEMO,):
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
