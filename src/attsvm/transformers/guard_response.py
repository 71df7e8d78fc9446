"""Whether the logits of a head follow a clip of its weights.

Queries and keys that go into attention as their projections make them, rotated or scaled, are as
large as these projections say. Where something normalises them in between, whatever it is called,
smaller weights make smaller outputs of the projection, and queries of the same size: a clip
shrinks the weights for nothing. Both sizes are of the same pass, so neither other data nor a step
of the optimiser comes between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.base.errors import InputError
from attsvm.optim.split import split_params
from attsvm.transformers.attention_calls import AttentionCall
from attsvm.transformers.head_weights import HeadRows, HeadWeights

HeadKey = tuple[int, int]
"""Number of the layer, and of the head in it."""
HeadSizes = tuple[float, float, float, float]
"""Mean squares of a head in one step: queries, what their projection gave, keys, what theirs gave;
NaN for sides that are not clipped, or whose projection is not known.
"""


class ClipResponse:
    """Notices heads whose queries or keys do not follow their projections after a clip.

    1. Inside ``with``, hooks keep what the projections of queries and keys give.
    2. At each attention, :meth:`measure` compares it with the queries and keys of the call.
    3. A clip of a head that has not been checked is put on trial with its sizes before it.
    4. The next measured step checks the trials.

    Args:
        model: whose projections are watched.

    Attributes:
        refused: heads that did not follow, and are not clipped again.
    """

    def __init__(self, model: nn.Module) -> None:
        self.refused: set[HeadKey] = set()
        self._following: set[HeadKey] = set()
        self._trials: dict[HeadKey, HeadSizes] = {}
        self._outputs: dict[str, Tensor] = {}
        self._hooks: list[Any] = []
        self._model = model
        try:
            matrices = split_params(model, ("query", "key"), blocks=None).matrices
        except InputError:
            matrices = ()
        self._projections = {
            matrix.name: model.get_submodule(matrix.name.removesuffix("weight").rstrip("."))
            for matrix in matrices
            if matrix.name.endswith(".weight")
        }

    def __enter__(self) -> ClipResponse:
        # What a projection puts out is read where it is computed, before any norm after it.
        for name, module in self._projections.items():
            self._hooks.append(module.register_forward_hook(self._keep_output(name)))
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._outputs = [], {}

    @property
    def has_trials(self) -> bool:
        """Whether a clip waits for its check."""
        return bool(self._trials)

    def state_dict(self) -> dict[str, list[list[int]]]:
        """Return the heads that have been checked, as lists of layer and head."""
        return {
            "following": sorted(list(key) for key in self._following),
            "refused": sorted(list(key) for key in self.refused),
        }

    def load_state_dict(self, state: dict[str, list[list[int]]]) -> None:
        """Go on from :meth:`state_dict`; a head on trial is tried again, since the weights from
        before its clip are no part of it.
        """
        self._following = {(layer, head) for layer, head in state.get("following", ())}
        self.refused = {(layer, head) for layer, head in state.get("refused", ())}
        self._trials = {}

    def measure(self, call: AttentionCall, weights: HeadWeights | None) -> Tensor:
        """Return the :data:`HeadSizes` of every head of a call, ``(4, heads)``."""
        heads = call.q.shape[1]
        sizes = torch.full((4, heads), torch.nan, device=call.q.device)
        # Heads whose projections are not known keep a size that is no number, and no trial.
        if weights is None:
            return sizes
        sizes[0] = call.q.float().square().mean(dim=(0, 2, 3))
        sizes[1] = self._projected(weights.queries, weights.d, sizes[1])
        # keys that several heads share are not clipped
        keys = weights.keys
        if keys is not None and len(keys.starts) == heads == call.k.shape[1]:
            sizes[2] = call.k.float().square().mean(dim=(0, 2, 3))
            sizes[3] = self._projected(keys, weights.d, sizes[3])
        return sizes

    def put_on_trial(self, key: HeadKey, sizes: HeadSizes) -> bool:
        """Return whether a clip of this head waits for its check: heads that have passed, and
        those whose projections are not known, need none.

        Args:
            key: the head.
            sizes: of the step before the clip.
        """
        # One clip that the logits followed is enough: the model does not change between steps.
        if key in self._following or math.isnan(sizes[1] + sizes[0]):
            return False
        self._trials[key] = sizes
        return True

    def check_trials(self, sizes_by_head: dict[HeadKey, HeadSizes]) -> list[HeadKey]:
        """End the trials, and return the heads that did not follow.

        Args:
            sizes_by_head: of the first measured step since the clip.
        """
        refused = []
        # A head that was not measured since its clip is neither passed nor refused.
        for key, before in self._trials.items():
            follows = is_following(before, sizes_by_head[key]) if key in sizes_by_head else None
            if follows:
                self._following.add(key)
            elif follows is False:
                refused.append(key)
        self._trials = {}
        self.refused.update(refused)
        return refused

    def _keep_output(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self._outputs[name] = output.detach()

        return hook

    def _projected(self, rows: HeadRows, d: int, unknown: Tensor) -> Tensor:
        """Return the mean square of what the projection gave to each head; ``unknown`` where no
        output of its length was seen.
        """
        output = self._outputs.get(rows.weight)
        length = self._model.get_parameter(rows.weight).shape[rows.axis]
        if output is None or output.shape[-1] != length:
            return unknown
        # all texts and tokens together: a head has one size in a step
        squares = output.float().square().flatten(0, -2).mean(dim=0)
        return torch.stack([squares[start : start + d].mean() for start in rows.starts])


def is_following(
    before: HeadSizes, after: HeadSizes, smallest: float = 0.005, tolerance: float = 0.5
) -> bool | None:
    """Return whether queries and keys changed in size as their projections did; None where those
    did not change enough to tell.

    Args:
        before: sizes of the step before a clip.
        after: sizes of a step after it.
        smallest: change of a projection, as a logarithm, from which it tells: well above the
            rounding of bfloat16 in a mean of many entries.
        tolerance: share of that change which queries may miss: it is 0 without normalisation and 1
            with it, up to learned gains and biases.
    """
    verdicts = []
    for size, projected in ((0, 1), (2, 3)):
        if not all(0 < sizes[k] < math.inf for sizes in (before, after) for k in (size, projected)):
            continue
        # of a mean square, half the logarithm
        expected = 0.5 * math.log(after[projected] / before[projected])
        change = 0.5 * math.log(after[size] / before[size])
        if abs(expected) >= smallest:
            verdicts.append(abs(change - expected) <= tolerance * abs(expected))
    return all(verdicts) if verdicts else None


def join_sizes(layers: dict[int, list[Tensor]], several: bool) -> dict[HeadKey, HeadSizes]:
    """Return the sizes of all heads in a step, means over its passes and over processes.

    Args:
        layers: per layer the sizes of every pass.
        several: whether there are other processes, which hold the same layers.
    """
    if not layers:
        return {}
    # one collective call for all layers, which may lie on several devices
    device = next(iter(layers.values()))[0].device
    means = {number: torch.stack(passes).mean(dim=0) for number, passes in layers.items()}
    joint = torch.cat([mean.to(device) for mean in means.values()], dim=1)
    if several:
        torch.distributed.all_reduce(joint)
        joint /= torch.distributed.get_world_size()
    keys = [(number, head) for number, mean in means.items() for head in range(mean.shape[1])]
    columns: list[list[float]] = joint.T.tolist()
    return {
        key: (queries, projected_queries, keys_, projected_keys)
        for key, (queries, projected_queries, keys_, projected_keys) in zip(
            keys, columns, strict=True
        )
    }
