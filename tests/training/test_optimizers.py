"""The optimiser of a plan owns every trainable tensor once, in the geometry that the plan names."""

import pytest
import torch
import training_problem as problem
from torch import nn

from attsvm.errors import InputError
from attsvm.geometry import Spectral
from attsvm.models import VisionTransformer
from attsvm.optim import MirrorDescent
from attsvm.training import TrainingPlan, build_optimizer, frozen_tensors
from attsvm.training.plan import OPTIMIZERS


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "model",
    [problem.classifier(), VisionTransformer(8, 4, width=8, heads=2)],
    ids=["text", "vision"],
)
def test_every_tensor_is_moved_once(optimizer, model):
    groups = build_optimizer(model, TrainingPlan(optimizer=optimizer)).param_groups
    moved = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(moved) == sorted(id(parameter) for parameter in model.parameters())


def test_frozen_parameters_stay_out():
    model = problem.classifier()
    model.positions.requires_grad_(False)
    groups = build_optimizer(model, TrainingPlan()).param_groups
    assert all(
        parameter is not model.positions for group in groups for parameter in group["params"]
    )
    with pytest.raises(InputError, match="no trainable parameters"):
        build_optimizer(model.requires_grad_(False), TrainingPlan())


def test_mirror_is_unnormalised_unless_named_so():
    plain, normalized = (
        build_optimizer(problem.classifier(), TrainingPlan(optimizer=name))
        for name in ("mirror", "mirror-normalized")
    )
    assert isinstance(plain, MirrorDescent)
    assert (plain.defaults["normalize"], plain.defaults["p"], plain.defaults["momentum"]) == (
        None,
        1.1,
        0,
    )
    assert normalized.defaults["normalize"] == "tensor"


def test_a_spectral_step_of_a_fused_map_is_three_steps():
    """Queries, keys and values each move by the polar factor of their own gradient: singular values
    near lr, all of them.
    """
    model = problem.classifier()
    optimizer = build_optimizer(model, TrainingPlan(optimizer="spectral", lr=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    moved = {
        name: parameter.detach() - before[name] for name, parameter in model.named_parameters()
    }
    parts = (*moved["blocks.0.attention.qkv.weight"].chunk(3), moved["blocks.1.network.0.weight"])
    for part in parts:
        values = torch.linalg.svdvals(part) / 0.5
        # the iteration leaves singular values within some hundredths of one, small ones below
        assert values.max() < 1.2
        assert values.median() > 0.8
    # Adam's first step has length lr in every entry; no matrix of a block is among what it moves
    torch.testing.assert_close(
        moved["readout.weight"].abs(),
        torch.full_like(moved["readout.weight"], 0.5),
        rtol=1e-4,
        atol=0,
    )
    assert {type(group["norm"]) for group in optimizer.param_groups if "norm" in group} == {
        Spectral
    }


def test_spectral_descent_needs_blocks():
    with pytest.raises(InputError, match="no matrices under the name blocks"):
        build_optimizer(nn.Linear(3, 2), TrainingPlan(optimizer="spectral"))


def test_zeros_are_frozen_for_small_p_alone():
    model = VisionTransformer(8, 4, width=8, depth=1, heads=2)
    biases = {name for name, parameter in model.named_parameters() if not parameter.any()}
    assert "blocks.0.before_attention.bias" in biases
    assert set(frozen_tensors(model, TrainingPlan(p=1.1))) == biases
    assert (
        frozen_tensors(model, TrainingPlan(p=2))
        == frozen_tensors(model, TrainingPlan(optimizer="adam"))
        == ()
    )
    assert frozen_tensors(problem.classifier(), TrainingPlan(p=1.1)) == ()  # a model without biases


def test_momentum_and_weight_decay_reach_the_optimisers_that_have_them():
    model = problem.classifier()
    sgd = build_optimizer(model, problem.plan(optimizer="sgd", momentum=0.9))
    adamw = build_optimizer(model, problem.plan(optimizer="adamw", weight_decay=0.3))
    assert [group["momentum"] for group in sgd.param_groups] == [0.9]
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.3]
    plain = build_optimizer(model, problem.plan(optimizer="adamw"))
    assert plain.param_groups[0]["weight_decay"] == 0.01  # torch's own
