r"""What the attention layers of a model select while it trains, for the Trainer of Hugging Face and
for Lightning.

Everything is measured on one batch that the user gives, in evaluation mode and without gradients,
every so many steps: the cost is one forward pass per measurement. Nothing is inferred about data
that was not given.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.errors import InputError, MissingExtraError

Attentions = Iterable[Tensor]


@dataclass(frozen=True)
class SelectionProbe:
    """Measures on one batch how sharply a model's attention selects.

    Attributes:
        batch: keyword arguments of the model, or whatever ``attentions`` takes. An
            ``attention_mask`` among them, ``(batch, T)``, leaves queries at padded positions out.
        attentions: ``attentions(model, batch)`` returns the attention probabilities of every layer,
            ``(batch, heads, queries, keys)`` each. By default the model is called with
            ``output_attentions=True``, as Hugging Face models understand it.
        prefix: in front of the names of the metrics.
    """

    batch: Any
    attentions: Callable[[nn.Module, Any], Attentions] = field(
        default_factory=lambda: _output_attentions
    )
    prefix: str = "attention/"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """The metrics of :func:`selection_metrics`, at the model's present weights. Modes and
        random state are left as found.
        """
        with evaluating(model):
            found = list(self.attentions(model, self.batch))
        mask = self.batch.get("attention_mask") if isinstance(self.batch, dict) else None
        return {
            f"{self.prefix}{name}": value for name, value in selection_metrics(found, mask).items()
        }


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients while the block lasts; every module's mode is left as
    found.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def selection_metrics(attentions: Attentions, mask: Tensor | None = None) -> dict[str, float]:
    r"""How sharply attention selects one token, over layers, heads and queries.

    Args:
        attentions: probabilities per layer, ``(batch, heads, queries, keys)``.
        mask: ``(batch, queries)``, nonzero at queries that count.

    Returns:
        ``top_share``: mean of :math:`\max_t s_t`, the share of the selected token, 1 when selection
        is hard. ``entropy``: mean of :math:`-\sum_t s_t\log s_t`, in nats.
        ``margin``: median of :math:`\log s_{(1)}-\log s_{(2)}`, which is the logit of the selected
        token minus that of the runner-up. A probability that has underflowed counts as the smallest
        number of its type (a margin of 87 in float32), so values near there say saturated, and
        queries that see one token only, saturated too.

    Raises:
        InputError: no attentions, or not four axes.
    """
    tops, entropies, margins = [], [], []
    for attention in attentions:
        if attention is None or attention.ndim != 4 or attention.shape[-1] < 2:
            shape = None if attention is None else tuple(attention.shape)
            raise InputError(
                f"a layer's attention is {shape}; give probabilities (batch, heads, queries, keys)"
                " with at least two keys"
            )
        rows = attention.transpose(1, 2)  # (batch, queries, heads, keys)
        kept = (
            rows.flatten(0, 1)
            if mask is None or mask.ndim != 2 or mask.shape[1] != rows.shape[1]
            else rows[mask.to(rows.device) != 0]
        )
        values = kept.float()
        best = values.topk(2, dim=-1).values.clamp(min=torch.finfo(values.dtype).tiny)
        tops.append(best[..., 0].flatten())
        margins.append((best[..., 0].log() - best[..., 1].log()).flatten())
        entropies.append(torch.special.entr(values).sum(dim=-1).flatten())
    if not tops:
        raise InputError(
            "the model returned no attention probabilities; for Hugging Face models load it with"
            " attn_implementation='eager'"
        )
    return {
        "top_share": float(torch.cat(tops).mean()),
        "entropy": float(torch.cat(entropies).mean()),
        "margin": float(torch.cat(margins).median()),
    }


def trainer_callback(trainer: Any, probe: SelectionProbe, every: int = 100) -> Any:
    """Log the probe through ``trainer.log`` every so many optimiser steps: add it to a
    ``transformers.Trainer`` and return it.

    Raises:
        InputError: ``every`` is below 1.
        MissingExtraError: transformers is not installed.
    """
    _check_every(every)
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingExtraError("logging from a Trainer", "transformers", "hub") from error

    class LogSelection(TrainerCallback):
        def on_step_end(
            self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
        ) -> None:
            if state.global_step % every == 0:
                metrics = probe.measure(model)
                if state.is_world_process_zero:
                    trainer.log(metrics)

    callback = LogSelection()
    trainer.add_callback(callback)
    return callback


def lightning_callback(probe: SelectionProbe, every: int = 100) -> Any:
    """A Lightning callback that logs the probe through the module's ``log_dict`` every so many
    optimiser steps.

    Raises:
        InputError: ``every`` is below 1.
        MissingExtraError: lightning is not installed.
    """
    _check_every(every)
    callback: Any = None
    for package in ("lightning", "pytorch_lightning"):  # the second is the older name of the first
        with contextlib.suppress(ImportError):
            callback = callback or importlib.import_module(package).Callback
    if callback is None:
        raise MissingExtraError("logging from a Lightning trainer", "lightning", "lightning")

    class LogSelection(callback):  # type: ignore[misc]
        last = 0  # a step may take several batches

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step != self.last and trainer.global_step % every == 0:
                self.last = trainer.global_step
                pl_module.log_dict(probe.measure(pl_module), rank_zero_only=True)

    return LogSelection()


def _output_attentions(model: nn.Module, batch: Any) -> Attentions:
    output: Any = model(**batch, output_attentions=True)
    found = [
        getattr(output, name, None)
        for name in ("attentions", "encoder_attentions", "decoder_attentions")
    ]
    return [
        attention
        for attentions in found
        if attentions is not None
        for attention in attentions
        if attention is not None
    ]


def _check_every(every: int) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InputError(
            f"every is {every!r}; give the number of steps between measurements, at least 1"
        )
