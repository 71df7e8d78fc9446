"""A probe from models and a file of texts to a run folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attsvm.base.errors import InputError
from attsvm.base.files import digest
from attsvm.base.pretrained import check_folder
from attsvm.base.store import RunFolder, code_digest, finished_run, holds_request, versions
from attsvm.datasets.devices import check_device
from attsvm.norms import parse_norm
from attsvm.transformers.audit import (
    Audit,
    SureSelections,
    audit_statistics,
    compare_pending_heads,
    select_again,
)
from attsvm.transformers.audit_checkpoint import AuditCheckpoint
from attsvm.transformers.audit_folder import PAGE, write_audit, write_audit_page
from attsvm.transformers.capture import capture
from attsvm.transformers.checkpoints import Checkpoints
from attsvm.transformers.comparison import AuditSettings
from attsvm.transformers.demo import demo_model
from attsvm.transformers.model_inputs import (
    check_accelerate,
    load_config,
    load_image_processor,
    load_model,
    load_tokenizer,
    part_for,
    run_model,
)
from attsvm.transformers.null_weights import Null
from attsvm.transformers.recording import Recording
from attsvm.transformers.texts import (
    ProbeTexts,
    TextCoverage,
    coverage_record,
    coverage_sentences,
    find_pictures,
    read_picture,
    read_probe_texts,
)

DEMO = "demo"
_MODEL_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")  # what a model is read from

RecordedTexts = tuple[Recording, TextCoverage]
"""A recording of a model on the texts, and how much of the texts it has read."""


@dataclass(frozen=True)
class ProbeRequest:
    """Models, texts and settings of a probe.

    Attributes:
        models: folders, hub names, or ``demo``; several are checkpoints of one training, by step.
        text: a file with a text per line; ``None`` for the demo, which has a text of its own.
        images: a folder of pictures, for models of images.
        device: where models run; the processor when left out.
        dtype: in which type; that of the saved weights when left out.
        device_map: how accelerate spreads a model over devices, instead of ``device``.
        norms, nulls, threshold, queries, draws, seed: see :func:`~attsvm.transformers.audit`.
        texts: largest number of texts to read from the file, from its beginning.
        tokens: largest number of tokens to read from a text, from its beginning.
    """

    models: tuple[str, ...]
    text: Path | None = None
    images: Path | None = None
    device: str | None = None
    dtype: str | None = None
    device_map: str | None = None
    norms: tuple[str, ...] = ("fro",)
    nulls: tuple[Null, ...] = ("heads", "permuted")
    texts: int = 64
    tokens: int = 256
    threshold: float = 0.5
    queries: int = 80
    draws: int = 3
    seed: int = 0

    @property
    def settings(self) -> AuditSettings:
        """The settings of the audit."""
        return AuditSettings(
            self.norms, self.nulls, self.threshold, self.queries, self.draws, self.seed
        )


def probe(
    request: ProbeRequest,
    folder: Path,
    *,
    overwrite: bool = False,
    command: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
    on_first_page: Callable[[Path], None] | None = None,
    page_interval: float = 10.0,
    page_share: float = 1 / 40,
) -> dict[str, Any]:
    """Run the models, audit their heads, write ``report.html`` and ``run.json``.

    The page is there as soon as the statistics of all heads are, and is written again while heads
    are compared with their solutions. A folder that holds the same run, finished, is read back; one
    that holds a part of it goes on with the heads that are left. Nothing of a model is written but
    statistics and names, nothing of the texts but the tokens that the page shows; while heads are
    left, all tokens that were read.

    1. Read names and texts, and refuse what is wrong with them before a folder is made.
    2. For every model: take its statistics from the checkpoint, or run it on the texts.
    3. Compare its pending heads, and save each as soon as it is there.
    4. Write the page and the record.

    Args:
        request: what to probe.
        folder: made when missing.
        overwrite: replace another run that is there.
        command: what made the page, printed at its end.
        progress: called with heads done and heads in all.
        on_first_page: called with the page when it is written first.
        page_interval: seconds between two versions of the page, at least.
        page_share: largest share of the time that goes into pages.

    Returns:
        The content of ``run.json``.

    Raises:
        InputError: a model that cannot be loaded or seen into, a text that is empty, a folder that
            holds something else.
    """
    # 1. whatever is refused is refused before a folder is made
    for norm in request.norms:
        parse_norm(norm)
    if request.tokens < 2:
        raise InputError(
            f"option tokens is {request.tokens}; a query of one token has nothing to select: give"
            " at least 2"
        )
    _check_placement(request)
    models, notes_on_folders = _models_by_step(request.models)
    texts = _read_texts_of(request, models.values())
    identity = {
        "command": "probe",
        **asdict(request),
        "text": None if request.text is None else str(request.text),
        "images": None if request.images is None else str(request.images),
        "sha256": texts.sha256,
        "contents": {f"the content of {name}": _model_digest(name) for name in models.values()},
        "versions": versions() | versions("attsvm", "transformers", "tokenizers"),
        "code": code_digest(probe),
    }
    if done := finished_run(folder, identity):
        return done
    recorded: RecordedTexts | None = None
    scratch = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    if not holds_request(folder, identity):
        recorded = record_model(request, next(iter(models.values())), texts, scratch)
    settings = request.settings
    with RunFolder(folder, identity, files=[PAGE], overwrite=overwrite) as run:
        audits: dict[int, Audit] = {}
        coverages: list[TextCoverage] = []
        title = ", ".join(request.models)
        page = _GrowingPage(run.path / PAGE, title, command, on_first_page)
        for index, (step, name) in enumerate(models.items()):
            # 2. statistics of all heads
            checkpoint = AuditCheckpoint(run, step)
            selections: SureSelections | None = None
            if checkpoint.saved is None:
                recording, coverage = recorded or record_model(request, name, texts, scratch)
                recorded = None
                audit, selections = audit_statistics(recording, settings)
                checkpoint.save_statistics(audit, coverage)
            else:
                recording, (audit, coverage) = Recording(), checkpoint.saved
            audits[step] = audit
            coverages.append(coverage)
            notes = [*notes_on_folders, *_notes_on_texts(texts, coverages)]
            end, total = (index + 1) * len(audit.heads), len(models) * len(audit.heads)
            if audit.pending or selections is not None:
                progress(end - len(audit.pending), total)
            # 3. keys and queries are not saved: a resumed probe runs the model again
            if audit.pending:
                page.write(_audit_or_checkpoints(audits), notes)
                if selections is None:
                    layers = {head.layer for head in audit.pending}
                    recording, _ = record_model(request, name, texts, scratch, layers)
                    selections = select_again(recording, audit, settings)
            for head in compare_pending_heads(recording, audit, selections or {}, settings):
                audit.replace_head(head)
                checkpoint.save_comparison(head)
                progress(end - len(audit.pending), total)
                page.rewrite(_audit_or_checkpoints(audits), notes, page_interval, page_share)
            audit.recording = audit.recording.without_layers()  # frees keys and queries
        # 4.
        environments = run.environments
        entries = {
            "texts": coverage_record(texts, coverages[-1]),
            **({"environments": environments} if len(environments) > 1 else {}),
        }
        result = _audit_or_checkpoints(audits)
        table = result.table() if isinstance(result, Audit) else Checkpoints(result).table()
        return write_audit(run, result, table, identity, title, command, notes, entries)


def _check_placement(request: ProbeRequest) -> None:
    """Refuse devices and types on which nothing can run here."""
    if request.device_map is not None:
        if request.device is not None:
            raise InputError("give option device or option device_map, not both")
        check_accelerate()
    check_device(request.device or "cpu", request.dtype or "float32")


def _read_texts_of(request: ProbeRequest, models: Collection[str]) -> ProbeTexts:
    """The texts; where there are none, a model that is not there either is told first."""
    if request.models == (DEMO,):
        if request.device_map is not None:
            raise InputError("'demo' is a small model; leave option device_map out")
        if request.text is not None or request.images is not None:
            raise InputError(
                "'demo' comes with its own text; leave text out, or name another model"
            )
        return ProbeTexts()
    for name in models:
        check_folder(name)
    try:
        if request.text is not None and request.images is not None:
            raise InputError("give option text or option images, not both")
        if request.images is not None:
            return find_pictures(request.images, request.texts)
        if request.text is None:
            raise InputError("give option text, a UTF-8 file with a text per line")
        return read_probe_texts(request.text, request.texts)
    except InputError:
        for name in models:
            load_config(name)
        raise


class _GrowingPage:
    """The page while heads are pending: written at once, then now and then."""

    def __init__(
        self,
        path: Path,
        title: str,
        command: str,
        on_first_page: Callable[[Path], None] | None,
    ) -> None:
        self._path, self._title, self._command = path, title, command
        self._on_first_page = on_first_page
        self._written, self._seconds = 0.0, 0.0

    def write(self, audit: Audit | Mapping[int, Audit], notes: Sequence[str]) -> None:
        start = time.monotonic()
        write_audit_page(self._path, audit, self._title, self._command, notes)
        self._written = time.monotonic()
        self._seconds = self._written - start
        if self._on_first_page is not None:
            self._on_first_page(self._path)
            self._on_first_page = None

    def rewrite(
        self,
        audit: Audit | Mapping[int, Audit],
        notes: Sequence[str],
        interval: float,
        share: float,
    ) -> None:
        """Write it again if that is due, see :func:`probe`."""
        if time.monotonic() > self._written + max(interval, self._seconds / share):
            self.write(audit, notes)


def _audit_or_checkpoints(audits: dict[int, Audit]) -> Audit | Mapping[int, Audit]:
    return next(iter(audits.values())) if len(audits) == 1 else Checkpoints(audits).audits


def _notes_on_texts(texts: ProbeTexts, coverages: Sequence[TextCoverage]) -> list[str]:
    notes = coverage_sentences(texts, coverages[-1])
    if any(coverage != coverages[-1] for coverage in coverages):
        notes.append("The tokenizers of the models differ: these numbers are of the last one.")
    return notes


def _model_digest(name: str) -> str | None:
    """A digest of the model in a folder; ``None`` where it is no folder."""
    if name == DEMO or not Path(name).is_dir():
        return None
    files = [path for path in sorted(Path(name).iterdir()) if path.suffix in _MODEL_FILES]
    lines = [f"{path.name}\0{digest(path)}\0" for path in files if path.is_file()]
    return digest(*map(os.fsencode, lines))[:16]


def _models_by_step(models: Sequence[str]) -> tuple[dict[int, str], list[str]]:
    """Models by the step that their folders are named after, else by their order; and a sentence
    on each folder of checkpoints that is passed over.

    A folder that is no model itself but holds ``checkpoint-N`` folders stands for these.
    """
    names: list[str] = []
    notes = []
    for model in models:
        folders = sorted(path for path in Path(model).glob("checkpoint-*") if path.is_dir())
        numbered = [path for path in folders if _checkpoint_step(path) is not None]
        is_model = (Path(model) / "config.json").is_file()
        if is_model and numbered:
            notes.append(
                f"{model} is a model itself, and its checkpoint-N folders ({len(numbered)}) were"
                " passed over; give these folders for curves over the training."
            )
        elif numbered and len(numbered) < len(folders):
            others = ", ".join(path.name for path in folders if path not in numbered)
            notes.append(f"Folders without the number of a step were passed over: {others}.")
        names += map(str, numbered) if numbered and not is_model else [model]
    steps = [_checkpoint_step(Path(name)) for name in names]
    if len(names) > 1 and DEMO in names:
        raise InputError("'demo' is one model; give it alone, or give checkpoints in folders")
    if None in steps or len(set(steps)) < len(steps):
        return dict(enumerate(names, start=1)), notes
    # names that all are steps, and different ones, are put in their order
    by_step = {step: name for step, name in zip(steps, names, strict=True) if step is not None}
    return dict(sorted(by_step.items())), notes


def _checkpoint_step(folder: Path) -> int | None:
    """The number of a folder ``checkpoint-N``."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(match[1]) if match else None


def record_model(
    request: ProbeRequest,
    name: str,
    texts: ProbeTexts,
    scratch: Path,
    layers: Collection[int] | None = None,
) -> RecordedTexts:
    """The attention of one of the models on these texts, in some of its layers, and how much of
    the texts it has read.

    Args:
        request: the probe.
        name: of the model.
        texts: what it reads.
        scratch: folder for a temporary file of keys and queries, so that memory does not grow with
            the number of layers.
        layers: numbers of the layers; all when left out.
    """
    if name == DEMO:
        return _record_demo(request, layers)
    if texts.are_pictures:
        return _record_pictures(request, name, texts, scratch, layers)
    model = _load(request, name)
    reader, tokenizer = part_for(model, name, "input_ids"), load_tokenizer(name)
    # tokenizers without a limit say so with a very large number
    limits = {
        f"--tokens is {request.tokens:,}": request.tokens,
        "the model takes no more": getattr(model.config, "max_position_embeddings", None),
        "its tokenizer allows no more": getattr(tokenizer, "model_max_length", None),
    }
    # the smallest limit that there is decides, and is named
    known = {why: limit for why, limit in limits.items() if isinstance(limit, int) and limit > 0}
    why = min(known, key=lambda reason: known[reason])
    coverage = TextCoverage(known[why], why)
    with torch.no_grad(), capture(reader, layers, folder=scratch) as recording:
        for number, text in texts.used.items():
            batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=coverage.limit)
            tokens = batch["input_ids"].shape[1]
            # a query of one token has nothing to select
            if tokens < 2:
                coverage.short.append(number)
                continue
            is_cut = tokens >= coverage.limit
            length = len(tokenizer(text)["input_ids"]) if is_cut else tokens
            coverage.add(number, length, tokens)
            run_model(reader, name, batch)
        if len(coverage.short) == len(texts.used):
            raise InputError(
                f"line {coverage.short[0]} of {request.text} has fewer than two tokens, and so has"
                " every other; give texts in which a query has something to select"
            )
    return recording.name_tokens(tokenizer), coverage


def _load(request: ProbeRequest, name: str) -> nn.Module:
    return load_model(name, request.device or "cpu", request.dtype, request.device_map)


def _record_pictures(
    request: ProbeRequest,
    name: str,
    pictures: ProbeTexts,
    scratch: Path,
    layers: Collection[int] | None,
) -> RecordedTexts:
    """The attention of a model of images on these pictures, whose tokens are patches."""
    reader = part_for(_load(request, name), name, "pixel_values")
    processor = load_image_processor(name)
    coverage = TextCoverage(0, "")
    with torch.no_grad(), capture(reader, layers, folder=scratch) as recording:
        for file in pictures.used.values():
            batch = processor(read_picture(Path(file)), return_tensors="pt")
            run_model(reader, name, {"pixel_values": batch["pixel_values"]})
    # the first layer sees all patches
    first = next(iter(recording.layers.values()))
    coverage.tokens = sum(text.queries_of_text for text in first.texts)
    return recording, coverage


def _record_demo(request: ProbeRequest, layers: Collection[int] | None) -> RecordedTexts:
    """The attention of the demo's model on the first 200 tokens of its own story, at most."""
    tokens = min(request.tokens, 200)
    model, word_pieces, batch = demo_model(tokens)
    model.to(request.device or "cpu", getattr(torch, request.dtype or "float32"))
    with torch.no_grad(), capture(model, layers) as recording:
        run_model(model, DEMO, batch)
    return recording.name_tokens(word_pieces), TextCoverage(tokens, "", tokens)
