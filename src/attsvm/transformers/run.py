"""A probe from models and a file of texts to a run folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attsvm.base.errors import InputError
from attsvm.base.files import digest
from attsvm.base.pretrained import check_folder, told_of_model
from attsvm.base.store import RunFolder, code_digest, finished_run, holds_request, versions
from attsvm.norms import parse_norm
from attsvm.transformers.audit import Audit, Seen, look, solved, statistics
from attsvm.transformers.audit_folder import PAGE, write, write_page
from attsvm.transformers.capture import Recording, capture
from attsvm.transformers.checkpoints import Checkpoints
from attsvm.transformers.comparison import Settings
from attsvm.transformers.finished_heads import FinishedHeads
from attsvm.transformers.null_weights import Null
from attsvm.transformers.texts import Reading, Texts, account, read_texts, sentences

DEMO = "demo"
_OWN = 200  # tokens of the demo's own story, at most
_AGAIN = 10.0  # seconds between two versions of the page, at least
_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")  # what a model is read from

Recorded = tuple[Recording, Reading]


@dataclass(frozen=True)
class Request:
    """What to probe.

    Attributes:
        models: folders, hub names, or ``demo``; several are checkpoints of one training, by step.
        text: a file with a text per line; ``None`` for the demo, which tells a story of its own.
        norms, nulls, threshold, queries, draws, seed: see :func:`~attsvm.transformers.audit`.
        texts: how many of the file are read at most, from its beginning.
        tokens: how many of a text are read at most, from its beginning.
    """

    models: tuple[str, ...]
    text: Path | None = None
    norms: tuple[str, ...] = ("fro",)
    nulls: tuple[Null, ...] = ("heads", "permuted")
    texts: int = 64
    tokens: int = 256
    threshold: float = 0.5
    queries: int = 80
    draws: int = 3
    seed: int = 0


Tell = Callable[[int, int], None]


def probe(
    request: Request,
    folder: Path,
    *,
    overwrite: bool = False,
    command: str = "",
    progress: Tell = lambda done, total: None,
    drawn: Callable[[Path], None] | None = None,
) -> dict[str, Any]:
    """Run the models, audit their heads, write ``report.html`` and ``run.json``.

    The page is there as soon as the statistics of all heads are, and is written again while heads
    are compared with their solutions. A folder that holds the same run, finished, is read back; one
    that holds a part of it goes on with the heads that are left. Nothing of a model is written but
    statistics and names, nothing of the texts but the tokens that the page shows; while heads are
    left, all tokens that were read.

    Args:
        request: what to probe.
        folder: made when missing.
        overwrite: replace another run that is there.
        command: what made the page, printed at its end.
        progress: called with heads done and heads in all.
        drawn: called with the page when it is written first.

    Returns:
        The content of ``run.json``.

    Raises:
        InputError: a model that cannot be loaded or seen into, a text that is empty, a folder that
            holds something else.
    """
    for each in request.norms:
        parse_norm(each)
    models, passed_over = _steps(request.models)
    texts = _texts(request, models.values())
    told = {
        "command": "probe",
        **asdict(request),
        "text": None if request.text is None else str(request.text),
        "sha256": texts.sha256,
        "contents": {f"the content of {name}": _content(name) for name in models.values()},
        "versions": versions() | versions("attsvm", "transformers", "tokenizers"),
        "code": code_digest(probe),
    }
    if done := finished_run(folder, told):
        return done
    recorded: Recorded | None = None
    if not holds_request(folder, told):
        # whatever is refused is refused before a folder is made
        recorded = record(request, next(iter(models.values())), texts)
    settings = Settings(
        request.norms,
        request.nulls,
        request.threshold,
        request.queries,
        request.draws,
        request.seed,
    )
    with RunFolder(folder, told, files=[PAGE], overwrite=overwrite) as run:
        audits: dict[int, Audit] = {}
        readings: list[Reading] = []
        page = _Page(run.path / PAGE, ", ".join(request.models), command, drawn)
        for place, (step, name) in enumerate(models.items()):
            heads = FinishedHeads(run, step)
            seen: Seen | None = None
            if heads.known is None:
                recording, reading = recorded or record(request, name, texts)
                recorded = None
                audit, seen = statistics(recording, settings)
                heads.begin(audit, reading)
            else:
                recording, (audit, reading) = Recording(), heads.known
            audits[step] = audit
            readings.append(reading)
            before = [*passed_over, *_told(texts, readings)]
            end, of_all = ((place + 1) * len(audit.heads), len(models) * len(audit.heads))
            if audit.pending or seen is not None:
                progress(end - len(audit.pending), of_all)
            if audit.pending:
                page.write(_shown(audits), before)
                if seen is None:
                    layers = {head.layer for head in audit.pending}
                    recording, _ = record(request, name, texts, layers)
                    seen = look(recording)
            for one in solved(recording, audit, seen or {}, settings):
                audit.put(*one)
                heads.keep(*one)
                progress(end - len(audit.pending), of_all)
                page.write(_shown(audits), before, again=True)
            audit.recording = Recording(words=audit.recording.words)  # of many, little is kept
        environments = run.environments
        about = {
            "texts": account(texts, readings[-1]),
            **({"environments": environments} if len(environments) > 1 else {}),
        }
        shown = _shown(audits)
        table = shown.table() if isinstance(shown, Audit) else Checkpoints(shown).table()
        return write(run, shown, table, told, page.title, command, before, about)


def _texts(request: Request, models: Collection[str]) -> Texts:
    """The texts; where there are none, a model that is not there either is told first."""
    if request.models == (DEMO,):
        if request.text is not None:
            raise InputError("'demo' tells a story of its own; leave text out, or name a model")
        return Texts()
    for name in models:
        check_folder(name)
    try:
        if request.text is None:
            raise InputError("give option text, a UTF-8 file with a text per line")
        return read_texts(request.text, request.texts)
    except InputError:
        for name in models:
            _loaded(_transformers().AutoConfig.from_pretrained, name)
        raise


class _Page:
    """The page while heads are left: written at once, then now and then."""

    def __init__(
        self, path: Path, title: str, command: str, drawn: Callable[[Path], None] | None
    ) -> None:
        self._path, self.title, self._command, self._drawn = path, title, command, drawn
        self._next = 0.0

    def write(
        self, found: Audit | Mapping[int, Audit], before: Sequence[str], again: bool = False
    ) -> None:
        start = time.monotonic()
        if again and start <= self._next:
            return
        write_page(self._path, found, self.title, self._command, before)
        self._next = time.monotonic() + max(_AGAIN, 40 * (time.monotonic() - start))
        if self._drawn is not None:
            self._drawn(self._path)
            self._drawn = None


def _shown(audits: dict[int, Audit]) -> Audit | Mapping[int, Audit]:
    return next(iter(audits.values())) if len(audits) == 1 else Checkpoints(audits).audits


def _told(texts: Texts, readings: Sequence[Reading]) -> list[str]:
    told = sentences(texts, readings[-1])
    if any(each != readings[-1] for each in readings):
        told.append("The tokenizers of the models differ: these numbers are of the last one.")
    return told


def _content(name: str) -> str | None:
    """A digest of the model in a folder; ``None`` where it is no folder."""
    if name == DEMO or not Path(name).is_dir():
        return None
    files = [path for path in sorted(Path(name).iterdir()) if path.suffix in _FILES]
    lines = [f"{path.name}\0{digest(path)}\0" for path in files if path.is_file()]
    return digest(*map(os.fsencode, lines))[:16]


def _steps(models: Sequence[str]) -> tuple[dict[int, str], list[str]]:
    """Models by the step that their folders are named after, else by their order; and a sentence
    on each folder of checkpoints that is passed over.

    A folder that is no model itself but holds ``checkpoint-N`` folders stands for these.
    """
    names: list[str] = []
    passed_over = []
    for model in models:
        folders = sorted(each for each in Path(model).glob("checkpoint-*") if each.is_dir())
        numbered = [each for each in folders if _step(each) is not None]
        itself = (Path(model) / "config.json").is_file()
        if itself and numbered:
            passed_over.append(
                f"{model} is a model itself, and its checkpoint-N folders ({len(numbered)}) were"
                " passed over; give these folders for curves over the training."
            )
        elif numbered and len(numbered) < len(folders):
            others = ", ".join(each.name for each in folders if each not in numbered)
            passed_over.append(f"Folders without the number of a step were passed over: {others}.")
        names += map(str, numbered) if numbered and not itself else [model]
    steps = [_step(Path(name)) for name in names]
    if len(names) > 1 and DEMO in names:
        raise InputError("'demo' is one model; give it alone, or give checkpoints in folders")
    if None in steps or len(set(steps)) < len(steps):
        return dict(enumerate(names, start=1)), passed_over
    by_step = {step: name for step, name in zip(steps, names, strict=True) if step is not None}
    return dict(sorted(by_step.items())), passed_over


def _step(folder: Path) -> int | None:
    found = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(found[1]) if found else None


def record(
    request: Request, name: str, texts: Texts, layers: Collection[int] | None = None
) -> Recorded:
    """The attention of one of the models on these texts, in some of its layers, and how much of
    the texts it has read.
    """
    if name == DEMO:
        from attsvm.transformers.demo import story

        tokens = min(request.tokens, _OWN)
        own, pieces, batch = story(tokens)
        with torch.no_grad(), capture(own, layers) as recording:
            own(**batch)
        return recording.name_tokens(pieces), Reading(tokens, "", tokens)
    model, tokenizer = _load(name)
    limits = {
        f"--tokens is {request.tokens:,}": request.tokens,
        "the model takes no more": getattr(model.config, "max_position_embeddings", None),
        "its tokenizer allows no more": getattr(tokenizer, "model_max_length", None),
    }
    known = {why: most for why, most in limits.items() if most is not None and most > 0}
    why = min(known, key=lambda each: known[each])
    reading = Reading(known[why], why)
    with torch.no_grad(), capture(model, layers) as recording:
        for number, text in texts.used.items():
            batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=reading.limit)
            tokens = batch["input_ids"].shape[1]
            if tokens < 2:
                raise InputError(
                    f"line {number} of {request.text} has fewer than two tokens; give texts in"
                    " which a query has something to select"
                )
            whole = tokens if tokens < reading.limit else len(tokenizer(text)["input_ids"])
            reading.add(number, whole, tokens)
            model(**batch)
    return recording.name_tokens(tokenizer), reading


def _load(name: str) -> tuple[Any, Any]:
    transformers = _transformers()
    tokenizer = _loaded(partial(_tokenizer, transformers.AutoTokenizer), name)
    model = _loaded(transformers.AutoModel.from_pretrained, name).eval()
    for key, value in model.named_parameters():
        if not torch.isfinite(value).all():
            raise InputError(f"the weights {key} of {name} hold NaN or infinity; save them again")
    return model, tokenizer


def _transformers() -> Any:
    """The package, silent."""
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
    return transformers


def _loaded(load: Callable[[str], Any], name: str) -> Any:
    """What a loader of a model gives; all that it raises in one sentence."""
    with told_of_model(name, [DEMO]):
        return load(name)


def _tokenizer(auto: Any, name: str) -> Any:
    """That of the folder, or of the folder around a checkpoint, which often comes without."""
    around = Path(name).parent
    try:
        return auto.from_pretrained(name)
    except (OSError, ValueError):
        if _step(Path(name)) is None or not (around / "tokenizer_config.json").is_file():
            raise
        return auto.from_pretrained(str(around))
