"""What every optimiser of the house inherits, on a momentum method of five lines."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from attsvm.errors import InputError
from attsvm.optim.base import DescentOptimizer, add_scaled, scalar


class Heavy(DescentOptimizer):
    """Heavy ball whose buffer is float32, whatever the parameter."""

    state_names = ("momentum_buffer",)

    def __init__(self, params: Any, lr: Any = 0.1, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def _check_group(self, group: dict[str, Any]) -> None:
        if not 0 <= group["momentum"] < 1:
            raise InputError(f"momentum is {group['momentum']!r}; give 0 <= momentum < 1")

    def _new_state(
        self, group: dict[str, Any], parameter: torch.Tensor, known: dict[str, Any]
    ) -> dict[str, Any]:
        if known or group["momentum"] == 0:
            return {}
        return {"momentum_buffer": torch.zeros_like(parameter, dtype=torch.float32)}

    def _prepared(self, group, parameters, gradients, *states):
        def write():
            if group["momentum"] == 0:
                add_scaled(parameters, gradients, -scalar(group, "lr"))
                return
            for parameter, gradient, buffer in zip(parameters, gradients, *states, strict=True):
                buffer.mul_(group["momentum"]).add_(gradient)
                parameter.sub_(buffer * group["lr"])

        return write


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    p = nn.Parameter(
        torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
            dtype
        )
    )
    p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )
    return p


def test_float32_state_of_low_precision_parameters_survives_every_way_of_saving() -> None:
    p = parameter(5, 3, dtype=torch.bfloat16)
    optimizer = Heavy([p])
    optimizer.step()
    optimizer.step()
    buffer = optimizer.state[p]["momentum_buffer"]
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    q = nn.Parameter(p.detach().clone())
    loaded = Heavy([q])
    seen = []
    loaded.register_load_state_dict_post_hook(
        lambda o: seen.append(o.state[q]["momentum_buffer"].dtype)
    )
    loaded.load_state_dict(torch.load(file))
    for other in (loaded, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (state,) = other.state.values()
        assert state["momentum_buffer"].dtype == torch.float32
        assert torch.equal(state["momentum_buffer"], buffer)
        assert state["momentum_buffer"].data_ptr() != buffer.data_ptr()
    assert seen == [torch.float32]  # hooks of the user see the final state


def test_a_checkpoint_changed_by_a_pre_hook_is_what_is_loaded() -> None:
    p, q = parameter(4, dtype=torch.bfloat16), parameter(4, dtype=torch.bfloat16)
    saved, loaded = Heavy([p]), Heavy([q])
    saved.step()

    def doubled(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        state_dict = copy.deepcopy(state_dict)
        state_dict["state"][0]["momentum_buffer"] *= 2
        return state_dict

    loaded.register_load_state_dict_pre_hook(doubled)
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded.state[q]["momentum_buffer"], 2 * saved.state[p]["momentum_buffer"])


def test_hyper_parameters_that_an_old_checkpoint_lacks_stay_as_constructed() -> None:
    optimizer = Heavy([parameter(2)], momentum=0.5)
    old = Heavy([parameter(2)], lr=0.3).state_dict()
    del old["param_groups"][0]["momentum"]
    optimizer.load_state_dict(old)
    assert optimizer.param_groups[0]["momentum"] == 0.5
    assert optimizer.param_groups[0]["lr"] == 0.3


def test_parameters_without_gradient_or_without_state_leave_no_entry() -> None:
    a, b = parameter(2), parameter(2)
    b.grad = None
    before = b.detach().clone()
    optimizer = Heavy([a, b])
    optimizer.step()
    assert list(optimizer.state) == [a]
    assert torch.equal(b, before)
    plain = Heavy([a], momentum=0)
    plain.step()
    assert plain.state_dict()["state"] == {}


def test_closure_has_gradients_and_its_loss_comes_back() -> None:
    p = parameter(3)
    optimizer = Heavy([p])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    before = float((p.detach() ** 2).sum())
    assert float(optimizer.step(closure).detach()) == pytest.approx(before)
    assert float((p.detach() ** 2).sum()) < before


def test_a_closure_without_a_loss_moves_nothing() -> None:
    p = parameter(3)
    before = p.detach().clone()
    with pytest.raises(
        InputError, match=r"closure given to Heavy.step returned None; return the loss"
    ):
        Heavy([p]).step(lambda: None)
    assert torch.equal(p, before)


def test_named_parameters_keep_their_names() -> None:
    layer = nn.Linear(3, 2)
    optimizer = Heavy(layer.named_parameters())
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize(
    "lr",
    [0.0, -0.1, float("nan"), float("inf"), "0.1", True, torch.tensor(float("nan")), torch.ones(2)],
)
def test_refuses_lr_in_the_constructor_and_in_a_group(lr: object) -> None:
    with pytest.raises(InputError, match="lr is "):
        Heavy([parameter(2)], lr=lr)
    optimizer = Heavy([parameter(2)])
    with pytest.raises(InputError, match="lr is "):
        optimizer.add_param_group({"params": [parameter(2)], "lr": lr})
    assert len(optimizer.param_groups) == 1


def test_refuses_bad_groups_empty_lists_complex_parameters_and_sparse_gradients() -> None:
    with pytest.raises(InputError, match="momentum is 2"):
        Heavy([{"params": [parameter(2)], "momentum": 2}])
    with pytest.raises(InputError, match="Heavy got an empty parameter list"):
        Heavy([])
    with pytest.raises(TypeError, match="iterable of Tensors"):
        Heavy(parameter(2))
    with pytest.raises(InputError, match=r"shape \(2,\) is complex"):
        Heavy([parameter(2, dtype=torch.complex64)])
    p = parameter(2, 2)
    p.grad = torch.ones(2, 2).to_sparse()
    with pytest.raises(InputError, match=r"shape \(2, 2\) has a sparse gradient"):
        Heavy([p]).step()


def test_tensor_lr_and_schedulers_are_seen() -> None:
    a, b = parameter(3), parameter(3)
    lr = torch.tensor(0.1)
    ours = Heavy([a], lr=lr, momentum=0)
    theirs = torch.optim.SGD([b], lr=0.1)
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (ours, theirs)
    ]
    for _ in range(3):
        for optimizer, schedule in zip((ours, theirs), schedules, strict=True):
            optimizer.step()
            schedule.step()
    torch.testing.assert_close(a, b)


def test_an_optimiser_leaves_the_compiler_of_torch_out():
    """Importing it takes a second, which a fit spends before its first step."""
    script = (
        "import sys, torch, attsvm.pipeline.fit\n"
        "from attsvm.optim import MirrorDescent, SteepestDescent\n"
        "weights = [torch.nn.Parameter(torch.ones(2, 2))]\n"
        "for kind in (SteepestDescent, MirrorDescent):\n"
        "    kind(weights, lr=0.1).add_param_group({'params': torch.nn.Parameter(torch.ones(3))})\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
