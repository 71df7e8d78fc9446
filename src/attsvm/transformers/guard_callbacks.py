"""The guard inside the Trainer of Hugging Face and inside Lightning: made when training begins,
logged with the other metrics, kept in checkpoints.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from attsvm.base.errors import InputError, MissingExtraError
from attsvm.base.extras import imported
from attsvm.transformers.guard import LogitGuard


class _GuardCallback:
    """A guard that a trainer drives: its checkpoints and its summaries."""

    guard: Any = None  # a LogitGuard, once training has begun
    guard_state: dict[str, Any] | None = None
    steps = 0

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings

    def __repr__(self) -> str:
        if self.guard is not None:
            return f"{type(self).__name__}({self.guard!r})"
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({settings}): training has not begun"

    def resume(self, guard_state: dict[str, Any] | None) -> None:
        if guard_state:
            self.guard.load_state_dict(guard_state)
        self.steps = self.guard.steps

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.end()

    def end(self) -> None:
        """Remove the guard of a training that has ended, or failed."""
        if self.guard is not None:
            self.guard.remove()

    def summary(self) -> dict[str, float]:
        """The guard's summary, if a step has ended since the last call, and was measured."""
        # once for each step that was measured
        before, self.steps = self.steps, self.guard.steps
        return self.guard.summary() if before < self.steps == self.guard.measured + 1 else {}


def guard_trainer(trainer: Any, **settings: Any) -> Any:
    """Guard the model of a ``transformers.Trainer``: add the callback that does it, and return it.

    At every measurement a few numbers go to ``trainer.log`` (:meth:`LogitGuard.summary`); the guard
    is ``callback.guard`` once training has begun, and its records are part of the checkpoints.

    Args:
        trainer: before ``train()``.
        settings: what :class:`LogitGuard` takes beside the model and the optimiser.

    Raises:
        MissingExtraError: transformers is not installed.
        InputError: from :class:`LogitGuard`, when training begins.
    """
    transformers = imported("transformers", "guarding a Trainer", "transformers", "hub")
    base: Any = transformers.trainer_callback.TrainerCallback
    stateful: Any = transformers.trainer_callback.ExportableState

    class LogitGuardCallback(_GuardCallback, base, stateful):  # type: ignore[misc]
        def on_train_begin(
            self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any
        ) -> None:
            self.end()  # of a training that failed, which no trainer says
            # compiled or parallel: the model as the trainer calls it
            model = trainer.model_wrapped
            self.guard = LogitGuard(model, optimizer=_unwrap_optimizer(optimizer), **settings)
            callbacks = state.stateful_callbacks or {}
            exported = callbacks.setdefault(type(self).__name__, self.state())
            if isinstance(exported, list):  # several callbacks of this name
                exported = exported[0]
            guard_state = self.guard_state or exported["attributes"]["guard_state"]
            self.resume(guard_state if state.global_step else None)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if (summary := self.summary()) and state.is_world_process_zero:
                trainer.log(summary)

        def state(self) -> dict[str, Any]:
            guard_state = self.guard.state_dict() if self.guard else None
            return {"args": {}, "attributes": {"guard_state": guard_state}}

    callback = LogitGuardCallback(settings)
    trainer.add_callback(callback)
    return callback


def guard_lightning(**settings: Any) -> Any:
    """A Lightning callback that guards the ``LightningModule`` in training.

    At every measurement a few numbers go to ``log_dict`` (:meth:`LogitGuard.summary`); the guard is
    ``callback.guard`` once training has begun, and its records are part of the checkpoints. It
    watches from the start of a batch to its backward pass, so ``training_step`` may call whatever
    networks it likes; one that is called twice within it counts as twice the layers.

    Args:
        settings: what :class:`LogitGuard` takes beside the model and the optimiser.

    Raises:
        MissingExtraError: lightning is not installed.
        InputError: from :class:`LogitGuard`, when training begins, or several optimisers.
    """
    base: Any = None
    for package in ("lightning", "pytorch_lightning"):  # the second is the older name of the first
        with contextlib.suppress(ImportError):
            base = base or importlib.import_module(package).Callback
    if base is None:
        raise MissingExtraError("guarding a Lightning trainer", "lightning", "lightning")

    class LogitGuardCallback(_GuardCallback, base):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if len(trainer.optimizers) != 1:
                raise InputError(
                    f"the module has {len(trainer.optimizers)} optimisers; the guard needs one, for"
                    " instance attsvm.optim.CombinedOptimizer"
                )
            self.guard = LogitGuard(
                pl_module,
                optimizer=_unwrap_optimizer(trainer.optimizers[0]),
                by_hand=True,
                **settings,
            )
            self.resume(self.guard_state)

        def on_exception(self, *_: Any) -> None:
            self.end()

        def on_train_batch_start(self, *_: Any) -> None:
            self.guard.start()

        def on_before_backward(self, *_: Any) -> None:
            self.guard.stop()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            self.on_before_backward()  # a step that was skipped had no backward pass
            if summary := self.summary():
                pl_module.log_dict(summary, rank_zero_only=True)

        def state_dict(self) -> dict[str, Any]:
            return {"guard_state": self.guard.state_dict()} if self.guard else {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.guard_state = state_dict.get("guard_state")

    return LogitGuardCallback(settings)


def _unwrap_optimizer(optimizer: Any) -> Any:
    """The optimiser that a trainer wraps."""
    while not hasattr(optimizer, "_optimizer_step_post_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
