"""What torch.optim asks of an optimiser, for every optimiser of the house.

A new optimiser joins by one line in ``TABLE``. The rows are torch's own checks
(``torch/testing/_internal/common_optimizers.py`` and ``test/test_optim.py``): paths agree, layouts,
precision, refusals, checkpoints, tensor lr, closures, scalers, groups, copies, compilation.
Schedulers are in ``test_schedulers.py``.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from parameters import normal_values, parameter
from torch import nn
from torch.optim import Optimizer

from attsvm.base.errors import InputError
from attsvm.norms import Lp, Schatten
from attsvm.optim import SteepestDescent
from attsvm.optim.mirror import MirrorDescent


@dataclass(frozen=True)
class Row:
    """An optimiser with fixed hyper-parameters.

    ``rounding`` is how far two paths to the same step may be apart, in units of the parameter's
    precision; ``graph`` says that torch.compile makes one graph of the step.
    """

    name: str
    kind: Any
    settings: dict[str, Any]
    rounding: float = 8.0
    graph: bool = False

    def make(self, params: Any, lr: Any = 0.1, **more: Any) -> Optimizer:
        optimizer: Optimizer = self.kind(params, lr=lr, **(self.settings | more))
        return optimizer

    @property
    def matrices_only(self) -> bool:
        norm = str(self.settings.get("norm", self.settings.get("potential", "")))
        return norm.lower().startswith(("spec", "nuc", "schatten"))

    @property
    def scale_free(self) -> bool:
        """A positive factor in the gradient does not matter."""
        return bool(self.settings.get("normalize", self.kind is SteepestDescent))

    @property
    def still_at_zero(self) -> bool:
        """A zero gradient moves nothing."""
        return not {"momentum", "weight_decay"} & self.settings.keys()

    @property
    def bfloat16_noise(self) -> bool:
        return self.settings.get("polar") == "newton-schulz"


AVERAGE = {"momentum": 0.9, "dampening": 0.9}
NESTEROV = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
MUON = {"norm": "spectral", **NESTEROV, "dampening": 0.9}
SCHATTEN = {"potential": "schatten"}
TABLE = [
    Row("gradient", SteepestDescent, {"normalize": False}, graph=True),
    Row("normalised gradient", SteepestDescent, {}, graph=True),
    Row("sign", SteepestDescent, {"norm": "linf"}, graph=True),
    Row("signum", SteepestDescent, {"norm": "linf", **AVERAGE}, graph=True),
    Row("coordinate", SteepestDescent, {"norm": "l1"}, graph=True),
    Row("lp 3, nesterov", SteepestDescent, {"norm": Lp(3), **NESTEROV}, graph=True),
    Row("lp 1.5", SteepestDescent, {"norm": Lp(1.5), "normalize": False}, graph=True),
    Row("spectral blocks", SteepestDescent, {"norm": "spectral", "blocks": 2}, 300),
    Row("muon", SteepestDescent, {**MUON, "polar": "newton-schulz"}),
    Row("muon, exact", SteepestDescent, MUON, 300),
    Row("express", SteepestDescent, {"norm": "spectral", "polar": "polar-express"}, 1000),
    Row("rank one", SteepestDescent, {"norm": "nuclear"}, 300),
    Row("schatten 3", SteepestDescent, {"norm": Schatten(3), "momentum": 0.5}, 300),
    Row("mirror 2", MirrorDescent, {"p": 2.0}, graph=True),
    Row("mirror 1.5", MirrorDescent, {"p": 1.5}, graph=True),
    Row("mirror 3, nesterov", MirrorDescent, {"p": 3.0, **NESTEROV}, graph=True),
    Row("mirror 1.5, normalised", MirrorDescent, {"p": 1.5, "normalize": True}, graph=True),
    Row("mirror, primal", MirrorDescent, {"p": 1.75, "weight_decay": 0.1, "decay_mode": "primal"}),
    Row("mirror schatten", MirrorDescent, {"p": 1.5, "normalize": True, **SCHATTEN}, 300),
    Row("mirror schatten 3", MirrorDescent, {"p": 3.0, "momentum": 0.5, **SCHATTEN}, 300),
]
single = partial(normal_values, dtype=torch.float32)
SHAPES = [(6, 4), (4, 6), (2, 4, 4), (6, 4), (0, 4)]
VECTORS = [(5,), ()]

every = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def parameters(row: Row, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    shapes = SHAPES + ([] if row.matrices_only else VECTORS)
    return [parameter(*shape, seed=index, dtype=dtype) for index, shape in enumerate(shapes)]


def feed(
    params: list[nn.Parameter], step: int, missing: int | None = None, scale: float = 1.0
) -> None:
    """Gradients of a step: the same for the same step, for every copy of the parameters."""
    for index, p in enumerate(params):
        p.grad = (
            None
            if index == missing
            else normal_values(*p.shape, seed=1000 * step + index, scale=scale, dtype=p.dtype)
        )


def run(optimizer: Optimizer, params: list[nn.Parameter], steps: range, **options: Any) -> None:
    for step in steps:
        feed(params, step, **options)
        optimizer.step()


def assert_near(row: Row, actual: list[Any], expected: list[Any], slack: float = 1.0) -> None:
    for a, b in zip(actual, expected, strict=True):
        # one bit more or less in bfloat16 becomes a percent of the step in a polynomial that
        # amplifies forty times
        tolerance = 0.05 if row.bfloat16_noise else slack * row.rounding * torch.finfo(b.dtype).eps
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)


def pair(
    row: Row, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[Optimizer, list[nn.Parameter], Optimizer, list[nn.Parameter]]:
    a, b = parameters(row, dtype), parameters(row, dtype)
    return row.make(a, **options), a, row.make(b), b


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_call_for_all_equals_one_by_one(row: Row, dtype: torch.dtype) -> None:
    # seven steps; one parameter has no gradient in the fourth, one has no elements
    a, b = parameters(row, dtype), parameters(row, dtype)
    many, single = row.make(a, foreach=True), row.make(b, foreach=False)
    for step in range(7):
        for optimizer, params in ((many, a), (single, b)):
            feed(params, step, missing=1 if step == 3 else None)
            optimizer.step()
    assert_near(row, a, b, slack=7)


@every
def test_an_update_changes_nothing_until_it_is_applied(row: Row) -> None:
    a, b = parameters(row), parameters(row)
    optimizer, plain = row.make(a), row.make(b)
    for step in range(2):
        feed(a, step)
        feed(b, step)
        before = copy.deepcopy((a, optimizer.state_dict()["state"]))
        with torch.no_grad():
            updates = optimizer.compute()
        assert all(map(same_bits, a, before[0]))
        after = optimizer.state_dict()["state"]
        assert after.keys() == before[1].keys()
        for index, entries in before[1].items():
            assert all(same_bits(after[index][name], value) for name, value in entries.items())
        with torch.no_grad():
            optimizer.apply(updates)
        plain.step()
        assert all(map(same_bits, a, b))


@every
def test_strides_do_not_matter(row: Row) -> None:
    a, b = parameters(row), parameters(row)
    for p in b:
        if p.ndim >= 2:
            p.data = p.data.mT.contiguous().mT
    first, second = row.make(a), row.make(b)
    for step in range(3):
        feed(a, step)
        feed(b, step)
        for index, p in enumerate(b):
            if p.ndim >= 2 and index != 1:  # one has the gradient in another layout than itself
                p.grad = p.grad.mT.contiguous().mT
        first.step()
        second.step()
    assert_near(row, b, a, slack=3)
    every_second = nn.Parameter(single(6, 8, seed=1)[:, ::2])
    packed = nn.Parameter(every_second.detach().clone())
    for p in (every_second, packed):
        p.grad = single(6, 4, seed=2)
        row.make([p]).step()
    assert_near(row, [every_second], [packed])


@every
def test_precisions_mix(row: Row) -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    params = [nn.Parameter(normal_values(6, 4, dtype=dtype)) for dtype in kinds]
    optimizer = row.make(params)
    run(optimizer, params, range(2))
    alone = nn.Parameter(single(6, 4, seed=0))
    other = row.make([alone])
    for step in range(2):
        alone.grad = single(6, 4, seed=1000 * step)
        other.step()
    assert_near(row, params[:1], [alone], slack=2)
    for p, dtype in zip(params, kinds, strict=True):
        assert p.dtype == dtype
        assert bool(p.isfinite().all())
        for value in optimizer.state[p].values():
            assert not isinstance(value, torch.Tensor) or value.dtype == torch.promote_types(
                dtype, torch.float32
            )


@pytest.mark.parametrize("row", [row for row in TABLE if row.scale_free], ids=lambda row: row.name)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_no_scale_of_the_gradient_is_out_of_range(row: Row, scale: float) -> None:
    optimizer, a, plain, b = pair(row)
    run(optimizer, a, range(2), scale=scale)
    run(plain, b, range(2))
    assert_near(row, a, b, slack=4)  # the scaled gradient itself is rounded


@every
def test_zero_gradients(row: Row) -> None:
    params = parameters(row)
    optimizer = row.make(params)
    states = [[p.detach().clone() for p in params]]
    for _ in range(3):
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        states.append([p.detach().clone() for p in params])
    assert all(bool(p.isfinite().all()) for p in params)
    if row.still_at_zero:
        # the first write may round, as it does through a mirror map
        assert_near(row, states[1], states[0])
        assert all(
            torch.equal(p, q) for p, q in zip(states[1] * 2, states[2] + states[3], strict=True)
        )


@every
def test_maximize_is_descent_of_the_negative(row: Row) -> None:
    up, a, down, b = pair(row, maximize=True)
    for step in range(3):
        feed(a, step)
        feed(b, step)
        gradients = [p.grad.clone() for p in a]
        for p in b:
            p.grad.neg_()
        up.step()
        down.step()
        # gradients are left as they were
        assert all(torch.equal(p.grad, gradient) for p, gradient in zip(a, gradients, strict=True))
    assert_near(row, a, b)


@every
def test_groups_have_their_own_settings_and_grow(row: Row) -> None:
    a, b, c = (nn.Parameter(single(6, 4, seed=0)) for _ in range(3))
    optimizer = row.make([{"params": [a]}, {"params": [b], "lr": 0.01}])
    apart = row.make([c], lr=0.01)
    run(optimizer, [a], range(1))
    for p, chosen in ((b, optimizer), (c, apart)):
        feed([a, p], 1)
        p.grad = single(6, 4, seed=7)
        chosen.step()
    assert_near(row, [b], [c])
    late = nn.Parameter(single(6, 4, seed=3))
    optimizer.add_param_group({"params": [late]})
    assert optimizer.param_groups[-1].keys() == optimizer.param_groups[0].keys()
    before = late.detach().clone()
    late.grad = single(6, 4, seed=9)
    optimizer.step()
    assert not torch.equal(late, before)
    with pytest.raises(InputError, match="lr is -1"):
        optimizer.add_param_group({"params": [nn.Parameter(single(6, 4, seed=3))], "lr": -1.0})
    assert len(optimizer.param_groups) == 3


def _by_file(
    optimizer: Optimizer, row: Row, params: list[nn.Parameter], weights_first: bool
) -> tuple[Optimizer, list[nn.Parameter]]:
    """Into a model built anew; torch reads weights alone by default."""
    file, fresh = io.BytesIO(), [nn.Parameter(torch.ones_like(p)) for p in params]
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = row.make(fresh)
    for what in ("weights", "state") if weights_first else ("state", "weights"):
        if what == "state":
            other.load_state_dict(torch.load(file))
        else:
            with torch.no_grad():
                for p, q in zip(fresh, params, strict=True):
                    p.copy_(q)
    return other, fresh


RELOADS: dict[str, Callable[..., Any]] = {
    "a file, weights first": lambda *a: _by_file(*a, weights_first=True),
    "a file, weights last": lambda *a: _by_file(*a, weights_first=False),
    "a pickle": lambda optimizer, _, params: pickle.loads(pickle.dumps((optimizer, params))),
    "a copy": lambda optimizer, _, params: copy.deepcopy((optimizer, params)),
}


@every
@pytest.mark.parametrize("way", RELOADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_to_the_same_bits_after_a_reload(
    row: Row, way: str, dtype: torch.dtype
) -> None:
    # one parameter has no gradient, and no state, before the reload
    params = parameters(row, dtype)
    optimizer = row.make(params, lr=0.05)
    run(optimizer, params, range(3), missing=1)
    assert params[1] not in optimizer.state
    other, copies = RELOADS[way](optimizer, row, params)
    assert other.param_groups[0]["lr"] == 0.05
    run(optimizer, params, range(3, 6))
    run(other, copies, range(3, 6))
    for p, q in zip(params, copies, strict=True):
        assert same_bits(p, q)
        assert optimizer.state.get(p, {}).keys() == other.state.get(q, {}).keys()
        for key, value in optimizer.state.get(p, {}).items():
            assert not isinstance(value, torch.Tensor) or same_bits(value, other.state[q][key])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal with the signs of zeros."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return a.dtype == b.dtype and torch.equal(
        *(tensor.detach().contiguous().view(kinds[a.dtype.itemsize]) for tensor in (a, b))
    )


@every
def test_an_old_checkpoint_lacks_hyper_parameters(row: Row) -> None:
    params = parameters(row)
    optimizer = row.make(params)
    run(optimizer, params, range(2))
    saved = optimizer.state_dict()
    old = {
        "state": copy.deepcopy(saved["state"]),
        "param_groups": [
            {"lr": group["lr"], "params": group["params"]} for group in saved["param_groups"]
        ],
    }
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    other = row.make(copies)
    other.load_state_dict(old)
    run(optimizer, params, range(2, 4))
    run(other, copies, range(2, 4))
    assert all(torch.equal(p, q) for p, q in zip(params, copies, strict=True))


@every
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_tensor_lr_is_its_number(row: Row, shape: tuple[int, ...]) -> None:
    a, b = parameters(row), parameters(row)
    rate = torch.full(shape, 0.125)
    tensored, plain = row.make(a, lr=rate), row.make(b, lr=0.125)
    run(tensored, a, range(2))
    run(plain, b, range(2))
    rate.fill_(0.25)  # in place, as a captured schedule does
    plain.param_groups[0]["lr"] = 0.25
    run(tensored, a, range(2, 4))
    run(plain, b, range(2, 4))
    assert_near(row, a, b, slack=4)


RATES: dict[str, Any] = {"a number": 0.0, "minus zero": -0.0, "a tensor": torch.tensor(0.0)}
PATHS: dict[str, dict[str, Any]] = {"default": {}, "one by one": {"foreach": False}}


@every
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_step_is_no_move(row: Row, dtype: torch.dtype, rate: str, path: str) -> None:
    """Every bit stays at ``lr=0``, signs of zeros too, whatever the gradient. State goes on: a step
    that follows is that of a run whose first rates were too small to be seen.
    """
    params = parameters(row, dtype)
    with torch.no_grad():
        params[0][0, 0], params[0][1, 1] = -0.0, 0.0
    before = [p.detach().clone() for p in params]
    optimizer = row.make(params, lr=RATES[rate], **PATHS[path])
    run(optimizer, params, range(3), missing=1)
    assert all(map(same_bits, params, before))
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    other = row.make(twins, lr=1e-30, **PATHS[path])
    run(other, twins, range(3), missing=1)
    for p, q in zip(params, twins, strict=True):
        mine, its = optimizer.state.get(p, {}), other.state.get(q, {})
        assert mine.keys() == its.keys()
        assert_near(row, [mine[name] for name in mine], [its[name] for name in mine])
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    run(optimizer, params, range(3, 4))
    assert not any(torch.equal(p, q) for p, q in zip(params, before, strict=True) if p.numel())
    frozen = row.make(params, lr=RATES[rate], **PATHS[path])
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.full_like(p, math.nan)
    frozen.step()
    assert all(map(same_bits, params, before))


FINITE_PATHS = [{}, {"foreach": True}, {"foreach": False}]


@every
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_written_and_stays_in_its_matrix(row: Row, value: float) -> None:
    """And in every later step: nothing is raised, and the other matrices go on as if without."""
    for path in FINITE_PATHS:
        spoilt, clean = parameters(row), parameters(row)
        optimizer, other = row.make(spoilt, **path), row.make(clean, **path)
        for step in range(3):
            for one, params in ((optimizer, spoilt), (other, clean)):
                feed(params, step)
                if params is spoilt and step == 1:
                    params[2].grad[1, 2, 1] = value
                one.step()
        assert not bool(spoilt[2][1].isfinite().all())
        # every singular direction is of all entries of a matrix
        if row.matrices_only and "blocks" not in row.settings:
            assert bool(spoilt[2][1].isnan().all())
        assert all(bool(p.isfinite().all()) for p in clean)
        rest = [*spoilt[:2], spoilt[2][0], *spoilt[3:]]
        assert_near(row, rest, [*clean[:2], clean[2][0], *clean[3:]], slack=3)


@every
def test_a_closure_runs_with_gradients_and_its_loss_comes_back(row: Row) -> None:
    a, b = parameters(row), parameters(row)
    optimizer, plain = row.make(a), row.make(b)

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = sum((p**2).sum() for p in a)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert float(loss.detach()) == pytest.approx(float(sum((p.detach() ** 2).sum() for p in b)))
    for p in b:
        p.grad = 2 * p.detach()
    plain.step()
    assert_near(row, a, b)
    with pytest.raises(ValueError, match="returned None"):
        optimizer.step(lambda: None)


REFUSED = [
    ({"lr": -0.5}, r"lr is -0\.5"),
    ({"lr": math.nan}, "lr is nan"),
    ({"lr": math.inf}, "lr is inf"),
    ({"lr": "0.1"}, "lr is '0.1'"),
    ({"lr": True}, "lr is True"),
    ({"lr": torch.tensor(math.nan)}, r"lr is tensor\(nan\)"),
    ({"lr": torch.ones(2)}, r"lr is a tensor of shape \(2,\)"),
    ({"momentum": -0.1}, r"momentum is -0\.1"),
    ({"weight_decay": -1}, "weight_decay is -1"),
    ({"nesterov": True, "momentum": 0.0}, "nesterov is True with momentum 0"),
    ({"dampening": 1.5}, r"dampening is 1\.5"),
    ({"foreach": True, "fused": True}, "foreach and fused are both True"),
]


@every
def test_refuses_settings(row: Row) -> None:
    for arguments, sentence in REFUSED:
        with pytest.raises(ValueError, match=sentence) as caught:
            row.make([nn.Parameter(single(6, 4, seed=0))], **arguments)
        assert isinstance(caught.value, InputError)


@every
def test_refuses_parameters(row: Row) -> None:
    p = nn.Parameter(single(6, 4, seed=0))
    with pytest.raises(InputError, match="empty parameter list"):
        row.make([])
    with pytest.raises(InputError, match=r"got the module Linear; give its parameters\(\)"):
        row.make(nn.Linear(4, 4))
    with pytest.raises(TypeError, match="iterable"):
        row.make(p)
    with pytest.raises(ValueError, match="more than one parameter group"):
        row.make([{"params": [p]}, {"params": [p]}])
    with pytest.raises(InputError, match="is complex"):
        row.make([nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))])
    if row.matrices_only:
        with pytest.raises(InputError, match=r"shape \(5,\)"):
            row.make([nn.Parameter(single(5))])


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


MACHINE_CODE = ("sign", "lp 1.5", "mirror 1.5")
WAYS: dict[str, dict[str, Any]] = {
    "steps": {"backend": "eager"},
    "one graph": {"backend": "eager", "fullgraph": True},
    "machine code": {"fullgraph": True},
}
FAST = {  # each a code path of its own, seconds to compile
    ("muon", "steps"),
    ("mirror 1.5", "steps"),
    ("lp 3, nesterov", "one graph"),
    ("mirror 3, nesterov", "one graph"),
}
COMPILED = [
    pytest.param(
        row, way, marks=[] if (row.name, way) in FAST else pytest.mark.slow, id=f"{row.name}-{way}"
    )
    for row in TABLE
    for way in WAYS
    if way == "steps" or (row.graph and way == "one graph") or row.name in MACHINE_CODE
]


STANDING = ("sign", "mirror 3, nesterov", "mirror schatten 3")  # each a code path of its own


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[] if row.name in STANDING else pytest.mark.slow, id=row.name)
        for row in TABLE
    ],
)
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_a_graph_with_a_tensor_lr_stands_at_zero_and_moves_by_it(row: Row) -> None:
    """The rate is data of the graph: no bit moves at zero, in the graph that moves at others."""
    params, twins = parameters(row)[:1], parameters(row)[:1]
    with torch.no_grad():
        for w in (*params, *twins):
            w[0, 0], w[1, 1] = -0.0, 0.0
    rate = torch.tensor(0.0)
    optimizer, plain = row.make(params, lr=rate), row.make(twins, lr=rate)
    step = torch.compile(optimizer.step, backend="eager")
    for number in range(3):
        rate.fill_(0.1 if number == 1 else 0.0)
        before = params[0].detach().clone()
        feed(params, number)
        feed(twins, number)
        if number == 2:
            params[0].grad[0, 0] = twins[0].grad[0, 0] = math.nan
        step()
        plain.step()
        assert same_bits(params[0], before) == (number != 1)
        assert_near(row, params, twins, slack=4)


@pytest.mark.parametrize(("row", "way"), COMPILED)
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_the_step_compiles_and_resumes(row: Row, way: str) -> None:
    """What it writes is what the plain step writes, to rounding; a run that goes on from a
    checkpoint of it ends in its bits, though no version counter tells of what it wrote.
    """
    if way == "machine code" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    if way == "one graph" and not hasattr(torch.optim, "Muon"):
        pytest.skip("the compiler before torch 2.9 cannot follow the step")

    def start(values: list[nn.Parameter]) -> tuple[Optimizer, list[nn.Parameter], Any]:
        params = [nn.Parameter(p.detach().clone()) for p in values]
        fresh = row.make(params, lr=torch.tensor(0.1))
        return fresh, params, torch.compile(fresh.step, **WAYS[way])

    first = parameters(row) if way == "steps" else parameters(row)[:1]
    optimizer, a, step = start(first)
    plain = row.make(first)
    for number in range(4):
        if number == 2:
            saved = copy.deepcopy(optimizer.state_dict())
            resumed, b, again = start(a)
            resumed.load_state_dict(saved)
        feed(a, number)
        feed(first, number)
        step()
        plain.step()
        if number >= 2:
            feed(b, number)
            again()
    assert_near(row, a, first, slack=4)
    for p, q in zip(a, b, strict=True):
        assert same_bits(p, q)
        for key, value in optimizer.state.get(p, {}).items():
            assert same_bits(value, resumed.state[q][key])
