"""A plan survives JSON and refuses what makes no sense."""

import json

import pytest

from attsvm.errors import InputError
from attsvm.training import TrainingPlan


def test_a_plan_survives_json():
    plan = TrainingPlan(
        optimizer="spectral",
        lr=0.02,
        rest_lr=1e-3,
        stop_accuracy=0.995,
        precision="bf16",
        augment=True,
        parts=4,
    )
    assert TrainingPlan(**json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"optimizer": "lion"}, "optimizer is 'lion'"),
        ({"loss_reduction": "max"}, "loss_reduction is 'max'"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"parts": 0}, "parts is 0"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"rest_lr": -1.0}, "rest_lr is -1.0"),
        ({"p": 1.0}, "p is 1.0"),
        ({"seed": -1}, "seed is -1"),
        ({"stop_accuracy": 1.5}, "stop_accuracy is 1.5"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
    ],
)
def test_values_out_of_range(settings, told):
    with pytest.raises(InputError, match=told):
        TrainingPlan(**settings)
