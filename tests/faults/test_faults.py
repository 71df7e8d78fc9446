"""Faults that are kept: ways in which the library could be wrong, the test that notices each, and
the claim that does at the quick scale where one concerns it.

A fault is a few lines that put something wrong in the place of something right, wherever it is
used. Its test is run as it stands, in this process, and must fail; the cells of its experiment are
computed anew, and its claim, which holds without the fault, must not.
"""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, settings

import attsvm
from attsvm import margins, norms, solvers, theory, training
from attsvm.base.errors import AttsvmError
from attsvm_papers.kit import Cell, experiment

ROOT = Path(__file__).parents[2]
FIRST = (Phase.explicit, Phase.generate)


class Break:
    """What a fault may do, undone when it is over."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch

    def swap(self, right: Any, wrong: Any) -> None:
        """``wrong`` wherever a module holds ``right``, under any name."""
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is right:
                    self.patch.setattr(module, name, wrong)

    def around(self, right: Any, wrong: Callable[..., Any]) -> None:
        """``wrong(right, *arguments)`` wherever a module holds the function ``right``."""
        self.swap(right, lambda *a, **k: wrong(right, *a, **k))

    def method(self, owner: type, name: str, wrong: Callable[..., Any]) -> None:
        """``wrong(right, self, *arguments)`` in place of a method."""
        right = getattr(owner, name)
        self.patch.setattr(owner, name, lambda *a, **k: wrong(right, *a, **k))


@dataclass(frozen=True)
class Fault:
    """One way to be wrong.

    Attributes:
        what: in words.
        breaks: does it.
        test: the test that fails, below ``tests``.
        claim: the experiment and the claim of it that does not hold; empty where no claim of the
            papers is about what is broken.
        why: why none is, where the claim is empty.
        cells: which cells of the experiment are enough, by the values of their arguments.
        less: arguments of these cells that are given other values, so that they take less time.
    """

    what: str
    breaks: Callable[[Break], None]
    test: str
    claim: str = ""
    why: str = ""
    cells: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    less: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.what.replace(" ", "-")


FAULTS: list[Fault] = []


def fault(
    what: str,
    test: str,
    claim: str = "",
    why: str = "",
    cells: Mapping[str, Sequence[Any]] | None = None,
    **less: Any,
) -> Callable[[Callable[[Break], None]], Callable[[Break], None]]:
    """Makes a function a fault."""

    def decorate(breaks: Callable[[Break], None]) -> Callable[[Break], None]:
        FAULTS.append(Fault(what, breaks, test, claim, why, cells or {}, less))
        return breaks

    return decorate


def rows_but_one(found: Any) -> Any:
    offsets = np.minimum(found.offsets, found.m - 1)
    return replace(
        found,
        differences=found.differences[:-1],
        offsets=offsets,
        rhs=found.rhs[:-1],
        token=found.token[:-1],
    )


# What is asked for: margins.


@fault(
    "one constraint is dropped",
    "margins/test_rows.py::test_selections_by_loops",
    "mmts-1 N1",
    cells={"part": ["descent"]},
)
def _(b):
    b.around(margins.selection_margins, lambda right, *a: rows_but_one(right(*a)))


@fault(
    "every sequence has the query of the next",
    "margins/test_rows.py::test_selections_by_loops",
    "tfsvm-1 E2.2a",
    cells={"toy": ["plane_margins"], "method": ["W"]},
    steps=1000,
    starts=1,
)
def _(b):
    def wrong(right, *arguments):
        found = right(*arguments)
        return replace(found, queries=np.roll(found.queries, -1, axis=0))

    b.around(margins.selection_margins, wrong)


@fault(
    "selected tokens and rivals change places",
    "margins/test_rows.py::test_selections_by_loops",
    "tfsvm-1 E2.2a",
    cells={"toy": ["plane_margins"], "method": ["W"]},
    steps=1000,
    starts=1,
)
def _(b):
    def wrong(right, *arguments):
        found = right(*arguments)
        return replace(found, differences=-found.differences)

    b.around(margins.selection_margins, wrong)


@fault(
    "hidden tokens are rivals too",
    "margins/test_rows.py::test_selections_by_loops",
    why="no experiment of the quick scale solves for sequences with hidden tokens",
)
def _(b):
    def wrong(right, data, tokens):
        return right(replace(data, mask=np.ones_like(data.mask)), tokens)

    b.around(margins.selection_margins, wrong)


@fault(
    "no margin is relaxed",
    "margins/test_rows.py::test_joint_training_of_the_paper",
    "mmts-4 E1.5a",
    cells={"part": ["descent"]},
    steps=100,
)
def _(b):
    b.around(margins.relax, lambda right, found, support: found)


@fault(
    "the decoder forgets the labels",
    "margins/test_rows.py::test_decoders_by_loops",
    "mmts-4 E1.4a",
    cells={"part": ["descent"]},
    steps=100,
)
def _(b):
    def wrong(right, data, tokens):
        return right(replace(data, labels=np.ones_like(data.labels)), tokens)

    b.around(margins.decoder_margins, wrong)


@fault(
    "tokens of a set compete with each other",
    "margins/test_rows.py::test_sets_by_loops",
    "mmts-9 T9b",
    cells={"part": ["mixture"]},
    seeds=[10000],
    sizes=[12.0],
)
def _(b):
    def wrong(right, data, sets):
        found = right(data, sets)
        return replace(found, equality=None, rhs=np.ones(found.m), kind="selection")

    b.around(margins.multi_token_margins, wrong)


@fault(
    "the finite part is turned round",
    "margins/test_finite.py::test_the_finite_component_is_the_pseudo_inverse",
    "mmts-9 T9",
    cells={"part": ["mixture"]},
    seeds=[10000],
    sizes=[3.0, 12.0],
)
def _(b):
    def wrong(right, *arguments):
        found = right(*arguments)
        return replace(found, W=-found.W)

    b.around(margins.finite_component, wrong)


@fault(
    "the last position has no margins",
    "margins/test_rows.py::test_positions_by_loops_and_as_pairs",
    "tfsvm-9 T20",
    cells={"part": ["trained"]},
    seeds=[10000, 10001, 10002, 10003],
)
def _(b):
    def wrong(right, data, tokens, causal=False):
        return rows_but_one(right(data, tokens, causal))

    b.around(margins.sequence_margins, wrong)


@fault(
    "a causal position sees the future",
    "margins/test_rows.py::test_positions_by_loops_and_as_pairs",
    "tfsvm-9 T20",
    cells={"part": ["trained"]},
    seeds=[10000, 10001, 10002, 10003],
)
def _(b):
    b.around(
        margins.sequence_margins, lambda right, data, tokens, causal=False: right(data, tokens)
    )


@fault(
    "winners and losers of an order change places",
    "theory/test_sentence_margins.py::test_order_rows_by_loops",
    "graph-1 C4.4a",
    cells={"part": ["acyclic"]},
    seeds=[10000, 10001, 10002, 10003],
)
def _(b):
    from attsvm.theory.sentence_margins import arc_margins

    b.around(arc_margins, lambda right, E, arcs, equality: right(E, arcs[:, [0, 2, 1]], equality))


@fault(
    "cycles are not seen",
    "theory/test_sentence_margins.py::test_components_of_hand_made_graphs",
    "graph-4 C4.2z",
)
def _(b):
    def wrong(right, arcs, size):
        queries, component = right(arcs, size)
        return queries, np.tile(np.arange(size), (len(component), 1))

    from attsvm.theory.sentence_margins import strong_components

    b.around(strong_components, wrong)


# Which tokens are meant: selection.


@fault(
    "scores forget the labels",
    "theory/test_tokens.py"
    "::test_scores_are_label_times_head_times_token_and_masked_tokens_never_win",
    "rates-4 C5.1",
)
def _(b):
    def wrong(right, data, head):
        return right(replace(data, labels=np.ones_like(data.labels)), head)

    b.around(margins.token_scores, wrong)


@fault(
    "one beaten neighbour is enough",
    "theory/test_tokens.py::test_a_locally_optimal_token_beats_all_its_neighbours",
    "mmts-9 T17b",
    cells={"part": ["enumeration"]},
)
def _(b):
    def wrong(right, solution, scores):
        margins = solution.margins
        return np.array(
            [
                not len(rivals) or bool((scores[i, margins.selected[i]] > scores[i, rivals]).any())
                for i, rivals in enumerate(solvers.neighbours(solution))
            ]
        )

    b.around(solvers.locally_optimal, wrong)


@fault(
    "a tie with a neighbour is no obstacle",
    "theory/test_tokens.py::test_local_optimality_of_the_planar_toys",
    "mmts-1 T6",
    cells={"part": ["near"]},
)
def _(b):
    def wrong(right, solution, scores):
        gamma = np.array(scores, dtype=float)
        for i, t in enumerate(solution.margins.selected):
            gamma[i, t] += 1e-9
        return right(solution, gamma)

    b.around(solvers.locally_optimal, wrong)


@fault(
    "every rival is a neighbour",
    "theory/test_tokens.py::test_local_optimality_of_the_planar_toys",
    "mmts-1 T4",
    cells={"part": ["near"]},
)
def _(b):
    def wrong(right, solution):
        of = solution.margins
        return [of.token[of.offsets[i] : of.offsets[i + 1]] for i in range(of.n)]

    b.around(solvers.neighbours, wrong)


@fault(
    "all tokens always support",
    "theory/test_conditions.py::test_fast_test_of_all_support_agrees_with_the_solver",
    why="experiments ask the solver which tokens support, not this shortcut",
)
def _(b):
    b.around(theory.all_support, lambda right, data, tokens: np.ones(data.batch_shape, bool))


@fault(
    "the first gradient is measured from the mean of all tokens' gains",
    "theory/test_conditions.py::test_alignment_is_that_of_the_first_gradient",
    "tfsvm-5 T15",
    cells={"n": [4], "T": [5], "d": [8]},
)
def _(b):
    b.around(theory.gradient_alignment, lambda right, *a, **k: right(*a, **k) + 0.01)


# Lengths: norms, and the directions that they make steepest.


@fault(
    "a norm is left without its root",
    "norms/test_families.py::test_value_is_the_definition",
    "md-1d M4",
    seeds=[10001, 10002],
)
def _(b):
    from attsvm.norms.gauge import Gauge

    def wrong(right, self, x):
        found = right(self, x)
        return found if self.p in (1.0, 2.0, float("inf")) else found**self.p

    b.method(Gauge, "length", wrong)


@fault(
    "the dual norm is the norm",
    "norms/test_norm.py::test_hoelder_with_equality_at_the_steepest_direction",
    "spectral-2 C7.1c",
    cells={"optimiser": [0]},
    steps=300,
)
def _(b):
    from attsvm.norms.norm import Norm

    b.method(Norm, "dual_value", lambda right, self, G: self.value(G))


@fault(
    "the arguments of the divergence change places",
    "norms/test_potential.py::test_divergence_does_not_cancel",
    why="near its solution the divergence is nearly symmetric",
)
def _(b):
    b.method(norms.PowerPotential, "bregman", lambda right, self, V, W: right(self, W, V))


@fault(
    "gaps are measured without unit length",
    "training/test_trajectory.py::test_gap_of_opposite_orthogonal_and_missing_directions",
    "mmts-1 N1",
    cells={"part": ["descent"]},
)
def _(b):
    def wrong(right, W, target):
        return right(W, target) + 1e-2 * np.log1p(np.linalg.norm(W, axis=(-2, -1)))

    b.around(training.direction_gap, wrong)


@fault(
    "spectral steps are sign steps",
    "optim/test_steepest.py::test_unit_length_and_attained_dual_norm",
    why="the experiments take the polar factor of the geometry, not of torch",
)
def _(b):
    from attsvm.optim import directions

    b.around(directions.polar_factor, lambda right, G, *a: torch.sign(G) / G.shape[-1])


@fault(
    "momentum is forgotten",
    "optim/test_steepest.py::test_sign_with_momentum_is_signum",
    "multihead-3 MB3",
    cells={"rule": ["momentum", "normalised"], "batch": [1], "dealt": [False]},
    steps=200,
    seeds=[10000],
    n=3,
    T=3,
)
def _(b):
    from attsvm.optim import base

    b.around(
        base.average_gradients,
        lambda right, group, gradients, buffers: right(
            {**group, "momentum": 0}, gradients, buffers
        ),
    )


@fault(
    "the exponent of mirror descent is .05 too large",
    "optim/test_mirror.py::test_a_step_is_mirror_descent_in_the_potential_of_the_geometry",
    "md-2 E2.7",
    cells={"p": [1.75, 3.0]},
    records=10,
)
def _(b):
    from attsvm.optim.powers import mirror_exponents

    b.around(mirror_exponents, lambda right, p: right(p + 0.05))


@fault(
    "Polyak's steps forget their factor",
    "training/test_polyak.py::test_compiled_steps_are_the_autograd_ones",
    why="rates-1 trains in the compiled engine, which the test compares",
)
def _(b):
    from attsvm.optim import polyak

    b.around(
        polyak.polyak_step,
        lambda right, loss, floor, factor, *a: right(loss, floor, 1.0, *a),
    )


# Solutions: the solvers.


@fault(
    "the nuclear norm is the Frobenius norm",
    "solvers/test_schatten.py::test_published_nuclear_direction",
    "tfsvm-1 E2.2a",
    cells={"toy": ["plane_margins"], "method": ["W"]},
    steps=1000,
    starts=1,
)
def _(b):
    from attsvm.solvers import front

    def wrong(right, norm):
        found = right(norm)
        return norms.Frobenius() if found == norms.Nuclear() else found

    b.patch.setattr(front, "as_norm", lambda norm: wrong(norms.as_norm, norm))


@fault(
    "solutions are a thousandth too short",
    "solvers/test_frobenius.py::test_literal_toys",
    "mmts-3 E1.3a",
    cells={"part": ["descent"]},
    steps=200,
)
def _(b):
    def wrong(right, *arguments, **options):
        found = right(*arguments, **options)
        if isinstance(found, solvers.MarginSolution) and found.has_weights:
            return replace(found, W=0.999 * found.W)
        return found

    b.around(solvers.max_margin, wrong)


@fault(
    "every certificate says zero",
    "solvers/test_promises.py::test_almost_infeasible_comes_with_its_certificate",
    why="claims rest on certificates and do not judge them",
)
def _(b):
    def wrong(right, *arguments, **options):
        found = right(*arguments, **options)
        if isinstance(found, solvers.MarginSolution):
            return replace(found, status="optimal", gap=0.0, violation=0.0)
        return found

    b.around(solvers.max_margin, wrong)


# Descent: gradients and steps.


@fault(
    "the gradient of one sequence is 1% off",
    "attention/test_exact_steps.py::test_one_step_has_twelve_digits[W-linear-1.0]",
    "mmts-6 T22b",
    cells={"part": ["descent"], "loss_name": ["linear", "logistic"]},
    scores=[1, 10, 100],
)
def _(b):
    from attsvm.training.instances import ReducedInstance

    def wrong(right, self, head):
        score = right(self, head)
        score[: self.start[1]] *= 1.01
        return score

    b.method(ReducedInstance, "scores", wrong)


@fault(
    "the gradient of one sequence is 1% off in torch",
    "attention/test_exact_steps.py::test_one_step_has_twelve_digits[W-linear-1.0]",
    why="limits do not depend on positive weights of sequences",
)
def _(b):
    from attsvm.attention import linear

    def wrong(ctx, grad):
        found = linear._LossFunction.backward(ctx, grad)
        found[0][..., 0, :] *= 1.01
        return found

    b.patch.setattr(
        linear, "SMALL_PRODUCT", 0
    )  # the gradient of moved queries, sequence by sequence
    b.patch.setattr(linear._CompiledLoss, "backward", staticmethod(wrong))


@fault(
    "factors are normalised jointly",
    "training/test_parameterizations.py::test_only_steps_of_the_stacked_pair_conserve_the_balance",
    why="norms of factors at the quick scale differ by less than a hundredth",
)
def _(b):
    from attsvm.training.native_loop import NativeLoop

    def wrong(right, self, r, scales):
        run = right(self, r, scales)
        run.stacked = 1
        return run

    b.method(NativeLoop, "_descent_run", wrong)


@fault(
    "schedules are not read",
    "training/test_polyak.py::test_schedules_by_name_are_those_of_groups",
    "rates-1 C5.2f",
)
def _(b):
    from attsvm.training import native_loop

    b.around(native_loop.step_factors, lambda right, schedule, step, count: np.ones(count))


@fault(
    "steps are a tenth too long",
    "training/test_train.py::test_loops_agree_on_ragged_data",
    "mmts-3 E1.3f",
    cells={"part": ["descent", "plain", "published"]},
)
def _(b):
    from attsvm.training import native_loop

    b.around(native_loop._rate_of_run, lambda right, *arguments: 1.1 * right(*arguments))


@fault(
    "logits are 10% too large",
    "attention/test_exact_steps.py::test_one_step_has_twelve_digits[W-linear-1.0]",
    "mmts-3 E1.3f",
    cells={"part": ["descent", "plain", "published"]},
)
def _(b):
    from attsvm import native

    def wrong(right, self, keys, *arguments, **named):
        right(self, 1.1 * keys, *arguments, **named)

    b.method(native.SequenceArrays, "__init__", wrong)


@fault(
    "a trained head stands still",
    "training/test_polyak.py::test_schedules_by_name_are_those_of_groups",
    "benign-1 BO1",
    cells={"part": ["courses"]},
)
def _(b):
    from attsvm.training import native_loop

    def wrong(right, group, scales, name, r):
        return right(group, scales, name, r) * (name != "head.readout")

    b.around(native_loop._rate_of_run, wrong)


@fault(
    "the logistic loss is the exponential one",
    "attention/test_exact_steps.py::test_one_step_has_twelve_digits[W-linear-1.0]",
    "mmts-6 T22b",
    cells={"part": ["descent"], "loss_name": ["linear", "logistic"]},
    scores=[1, 10, 100],
)
def _(b):
    from attsvm.training.native_loop import NativeLoop

    def wrong(right, self, r, scales):
        run = right(self, r, scales)
        run.loss = run.loss or 1
        return run

    b.method(NativeLoop, "_descent_run", wrong)


@fault(
    "starts are not read",
    "attention/test_exact_steps.py::test_one_step_has_twelve_digits[W-linear-1.0]",
    "mmts-1 N1",
    cells={"part": ["descent"]},
)
def _(b):
    from attsvm.training import native_loop

    def wrong(right, *arguments):
        return [0.0 * part for part in right(*arguments)]

    b.around(native_loop._start_weights, wrong)


@fault(
    "paths are in the Frobenius norm, whatever was asked for",
    "theory/test_radius_path.py::test_paths_in_another_norm_reach_its_solution",
    "mmts-9 T18",
    cells={"part": ["local_path"], "bound": ["lp:3"]},
    seeds=[10000, 10001],
)
def _(b):
    from attsvm.theory import radius_path

    b.patch.setattr(radius_path, "as_norm", lambda norm: norms.Frobenius())


@fault(
    "the output matrix is trained on sentences of two tokens",
    "theory/next_token/test_training.py"
    "::test_stage_one_is_a_straight_line_with_orthonormal_embeddings",
    "ntp-1 C3.1a",
    seeds=[10000],
)
def _(b):
    from attsvm.theory.next_token import algorithm_one

    b.patch.setattr(algorithm_one, "_sentences_of_one_token", lambda run, data: data)


@fault(
    "tokens of one support need not be level",
    "theory/test_sentence_margins.py::test_soft_label_rows_by_loops",
    "ntp-7 SL3",
    cells={"kind": ["both", None], "rule": ["plain", None], "width": [None]},
    seeds=[10000, 10001],
)
def _(b):
    def wrong(right, *arguments):
        found = right(*arguments)
        return replace(found.restricted(~found.equalities), equality=None)

    b.around(theory.soft_label_margins, wrong)


@fault(
    "the finite part holds the tokens of a support to be equally frequent",
    "theory/test_soft_labels.py::test_orthonormal_embeddings_in_closed_form",
    "ntp-7 SL2",
    cells={"kind": ["both", None], "rule": ["plain", None], "width": [None]},
    seeds=[10000, 10001],
)
def _(b):
    from attsvm.theory import soft_labels

    def wrong(right, labels, *arguments, **named):
        p = labels.probabilities
        even = (p > 0) / (p > 0).sum(axis=1, keepdims=True)
        return right(labels._replace(probabilities=even), *arguments, **named)

    b.around(soft_labels._likelihood, wrong)


@fault(
    "multipliers of equalities are never negative",
    "solvers/test_equalities.py::test_random_programmes",
    "ntp-7 SL3",
    cells={"kind": ["both", None], "rule": ["plain", None], "width": [None]},
    seeds=[10000, 10001],
)
def _(b):
    from attsvm.solvers import equalities

    def wrong(right, margins, norm, request, solver):
        found = solver(replace(margins, equality=None), norm, request)
        return replace(found, margins=margins)

    b.around(equalities.solve, wrong)


@fault(
    "a warm start is not read",
    "solvers/test_frobenius.py::test_warm_start_reaches_the_same_weights_sooner",
    why="a warm start changes the time of a solution and not the solution",
)
def _(b):
    from attsvm.solvers import starts

    b.around(starts.start_from, lambda right, *a: None)


@fault(
    "hidden tokens are trained on where lengths differ",
    "training/test_train.py::test_loops_agree_on_ragged_data",
    why="sequences of the quick experiments have no hidden tokens",
)
def _(b):
    from attsvm.training import instances

    def wrong(right, data, *arguments, **named):
        return right(replace(data, mask=np.ones_like(data.mask)), *arguments, **named)

    b.around(instances.read_instances, wrong)


@fault(
    "a schedule begins anew after every record",
    "training/test_polyak.py::test_schedules_by_name_are_those_of_groups",
    why="errors still fall within the bounds of rates-1 C5.2f",
)
def _(b):
    from attsvm.training import native_loop

    b.around(
        native_loop.step_factors, lambda right, schedule, step, count: right(schedule, 0, count)
    )


@fault(
    "weights are decayed in the direction of a step",
    "optim/test_steepest.py::test_weight_decay_shrinks_and_stays_out_of_the_direction",
    why="experiments train without weight decay, or with torch's",
)
def _(b):
    from attsvm.optim import SteepestDescent

    def wrong(right, self, tensors, results):
        decay = tensors.group["weight_decay"]
        rows = zip(tensors.parameters, tensors.gradients, strict=True)
        gradients = [gradient + decay * parameter for parameter, gradient in rows]
        group = {**tensors.group, "weight_decay": 0.0}
        return right(self, tensors._replace(group=group, gradients=gradients), results)

    b.method(SteepestDescent, "_apply_group", wrong)


@fault(
    "momentum does not come back from a checkpoint",
    "optim/test_contract.py::test_training_goes_on_to_the_same_bits_after_a_reload",
    why="experiments train in one piece",
)
def _(b):
    from attsvm.optim.base import DescentOptimizer

    def wrong(right, self, saved):
        state = {
            index: {name: kept for name, kept in each.items() if name != "momentum_buffer"}
            for index, each in saved["state"].items()
        }
        return right(self, {**saved, "state": state})

    b.method(DescentOptimizer, "load_state_dict", wrong)


@contextmanager
def broken(by: Fault) -> Iterator[None]:
    """Inside, the library has the fault; afterwards nothing is left of it."""
    for package in (attsvm.training, attsvm.optim, attsvm.solvers, attsvm.margins, attsvm.theory):
        for found in pkgutil.iter_modules(package.__path__):  # all that would be imported under it
            importlib.import_module(f"{package.__name__}.{found.name}")
    if by.claim:
        experiment(by.claim.split()[0])
    forget()
    known = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        by.breaks(Break(patch))
        try:
            yield
        finally:
            for name in set(sys.modules) - known:  # read anew, without the fault
                if name.startswith(("tests", "attsvm")):
                    del sys.modules[name]
            forget()


def forget() -> None:
    """Empty the caches of experiments: they may hold what was solved with another library."""
    for name, module in list(sys.modules.items()):
        if name.startswith("attsvm_papers"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


class Outcomes:
    """A plugin that remembers why tests failed. The first example that fails is enough: ``patch``
    keeps hypothesis from looking for a smaller one.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.failed: list[str] = []
        self.count = 0

    def pytest_itemcollected(self, item: Any) -> None:
        name = "_hypothesis_internal_use_settings"
        if hasattr(item.obj, name):
            first = settings(getattr(item.obj, name), phases=FIRST, report_multiple_bugs=False)
            self.patch.setattr(item.obj, name, first)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.count += report.when == "call"
        if report.failed:
            self.failed.append(str(getattr(report.longrepr, "reprcrash", report.longrepr)))


def outcomes(test: str) -> Outcomes:
    """What becomes of a test, run as it stands inside this one."""
    options = ["-q", "-x", "--tb=no", "--no-header", "--no-summary", f"--rootdir={ROOT}"]
    plugins = ["-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider"]
    plugins += ["-p", "no:unraisableexception"]  # this process watches; it collects all, five times
    with pytest.MonkeyPatch.context() as patch:
        found = Outcomes(patch)
        pytest.main([*options, *plugins, str(ROOT / "tests" / test)], plugins=[found])
    return found


def smaller(of: Fault) -> list[Cell]:
    """The cells that the fault's claim is judged on."""
    chosen = experiment(of.claim.split()[0])
    cells = [
        {**cell, **of.less}
        for cell in chosen.work(chosen.quick)
        if all(cell.get(name) in values for name, values in of.cells.items())
    ]
    return list({json.dumps(cell, sort_keys=True): cell for cell in cells}.values())


def verdict(of: Fault, run: Callable[..., Any]) -> str:
    """The verdict on a fault's claim, or the error that it ends with. The trials are few, so that
    the claim is not asked how many of them there are.
    """
    name, wanted = of.claim.split()
    chosen, cells = experiment(name), smaller(of)
    (claim,) = [replace(each, trials="") for each in chosen.claims if each.id == wanted]
    try:
        return claim.check(chosen.evidence(cells, [run(cell) for cell in cells])).verdict
    except (AttsvmError, ArithmeticError, ValueError) as error:
        return type(error).__name__


@functools.cache
def sound(name: str, cell: str) -> Any:
    """What the library finds without a fault in a cell, once in a process."""
    return experiment(name).run(**json.loads(cell))


@pytest.mark.parametrize("of", FAULTS, ids=str)
@pytest.mark.experiment
def test_a_test_notices(of):
    with broken(of):
        found = outcomes(of.test)
    assert found.count, f"{of.test} was not run"
    assert found.failed, f"{of.test} does not notice that {of.what}"
    blunders = ("TypeError", "NameError", "AttributeError")
    assert not any(each in found.failed[0] for each in blunders), "the fault itself is faulty"


CLAIMS = [of for of in FAULTS if of.claim]


@pytest.mark.parametrize("of", CLAIMS, ids=str)
@pytest.mark.experiment
def test_a_claim_notices(of):
    name = of.claim.split()[0]
    before = verdict(of, lambda cell: sound(name, json.dumps(cell, sort_keys=True)))
    assert before == "holds", f"{of.claim} does not hold on the cells that it is judged on here"
    with broken(of):
        found = verdict(of, lambda cell: experiment(name).run(**cell))
    assert found != "holds", f"{of.claim} does not notice that {of.what}"


def test_there_are_thirty_and_most_concern_a_claim():
    assert len(FAULTS) >= 30
    assert len({of.what for of in FAULTS}) == len(FAULTS)
    assert len(CLAIMS) >= 32
    assert all(bool(of.claim) != bool(of.why) for of in FAULTS)
