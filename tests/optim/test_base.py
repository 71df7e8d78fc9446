"""State of low precision parameters through every way of saving, and what importing costs."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from parameters import give_gradient, parameter
from torch import nn

from attsvm.optim import SteepestDescent


def heavy(weight: nn.Parameter, steps: int = 0) -> SteepestDescent:
    """Momentum, whose buffer is float32 where the weight is bfloat16."""
    optimizer = SteepestDescent([weight], lr=0.1, momentum=0.9)
    for step in range(steps):
        give_gradient(weight, step)
        optimizer.step()
    return optimizer


def test_float32_state_of_low_precision_parameters_survives_every_way_of_saving() -> None:
    p = parameter(5, 3, dtype=torch.bfloat16)
    optimizer = heavy(p, steps=2)
    buffer = optimizer.state[p]["momentum_buffer"]
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    q = nn.Parameter(p.detach().clone())
    loaded, dtypes = heavy(q), []
    loaded.register_load_state_dict_post_hook(
        lambda o: dtypes.append(o.state[q]["momentum_buffer"].dtype)
    )
    loaded.load_state_dict(torch.load(file))
    for other in (loaded, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (state,) = other.state.values()
        assert state["momentum_buffer"].dtype == torch.float32
        assert torch.equal(state["momentum_buffer"], buffer)
        assert state["momentum_buffer"].data_ptr() != buffer.data_ptr()
    assert dtypes == [torch.float32]  # hooks of the user see the final state


def test_a_checkpoint_changed_by_a_pre_hook_is_what_is_loaded() -> None:
    p, q = (parameter(4, dtype=torch.bfloat16) for _ in range(2))
    saved, loaded = heavy(p, steps=1), heavy(q)

    def doubled(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        state_dict = copy.deepcopy(state_dict)
        state_dict["state"][0]["momentum_buffer"] *= 2
        return state_dict

    loaded.register_load_state_dict_pre_hook(doubled)
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded.state[q]["momentum_buffer"], 2 * saved.state[p]["momentum_buffer"])


@pytest.mark.processes
def test_an_optimiser_leaves_the_compiler_of_torch_out() -> None:
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
