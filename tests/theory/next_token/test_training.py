"""Training on next tokens: closed paths, invariances, other optimisers on the same steps, and what
has no signal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformer import NextTokenTransformer

from attsvm.base.errors import InputError
from attsvm.norms import Frobenius, Lp, Nuclear, Spectral
from attsvm.optim import SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.solvers import max_margin, max_margin_batch
from attsvm.theory import order_margins, soft_label_margins
from attsvm.theory.next_token import (
    NoAttentionSignalError,
    Problem,
    StepRule,
    attention_stage,
    compiled_runs,
    factored_output_stage,
    factored_stage,
    joint_stage,
    output_stage,
    output_values,
    steepest_stage,
    two_stage,
)
from attsvm.theory.sentences import NextTokenData, arcs, bipartite, priority_graph, stack, total
from attsvm.training.trajectory import AtSteps
from attsvm_papers.ntp.two_stages import output_targets

K = 12
ETA = (0.2 / np.sqrt(K), 0.05 / np.sqrt(K))
END = AtSteps(())


@pytest.fixture(scope="module")
def sets():
    return [bipartite(K, 3, 0), bipartite(K, 3, 1)]


def trained(data, steps=(600, 2000)):
    return two_stage(data, StepRule(ETA[0]), StepRule(ETA[1]), steps, records=END)


def test_stage_one_is_a_straight_line_with_orthonormal_embeddings() -> None:
    data = bipartite(K, 1, 5, "ortho")
    course = output_stage(data, StepRule(0.1), 300, records=AtSteps([1, 50]), watch=True)
    target = output_targets([data])[0]
    expected = 0.1 * course.steps[:, None, None, None] * target / np.linalg.norm(target)
    assert np.abs(course.W - expected).max() < 1e-12  # 300 roundings of numbers below ten
    assert course.loss[:, 0] == pytest.approx(
        np.log1p((K - 1) * np.exp(-0.1 * course.steps / np.sqrt(K - 1))), rel=1e-12, abs=0
    )
    assert course.rises is not None
    assert course.rises.tolist() == [0]


@pytest.mark.parametrize(
    "rule",
    [
        StepRule(0.1),
        StepRule(0.5, decay=0.5),
        StepRule(2.0, normalize=False),
        StepRule(1.0, polyak=2.0),
    ],
)
def test_compiled_steps_are_those_of_torch(sets, rule) -> None:
    data = [one.select(one.lengths > 1) for one in sets]
    values = output_values(2.0 * output_targets(sets), np.eye(K))
    problem = Problem.of(data, values=values)
    # Polyak's loss is soon within rounding of its floor, which torch subtracts
    steps = 8 if rule.polyak else 40
    course = attention_stage(problem, rule, steps, records=END)
    model = NextTokenTransformer(stack(data), None, values.swapaxes(-1, -2))
    if rule.polyak:
        optimizer = PolyakDescent(
            [model.W_kq], rule.lr, normalize=False, loss_floor=torch.tensor(problem.floor())
        )
    else:
        optimizer = SteepestDescent([model.W_kq], rule.lr, normalize=rule.normalize)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = rule.lr / (t + 1) ** rule.decay
        optimizer.zero_grad()
        loss = model.loss()
        loss.sum().backward()
        optimizer.step(loss.detach)
    assert (
        np.abs(course.W[-1] - model.W_kq.detach().numpy()).max()
        <= 1e-11 * np.abs(course.W[-1]).max()
    )


@pytest.mark.parametrize("norm", [Spectral(), Lp(np.inf), Nuclear(), Frobenius()])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steepest_steps_with_momentum_are_those_of_the_optimiser(norm, momentum) -> None:
    data = [priority_graph(4, 6, 8, 8, seed) for seed in range(2)]
    problem = Problem.of(data, "log_mass")
    init = np.random.default_rng(1).uniform(-0.3, 0.3, (2, 8, 8))
    course = steepest_stage(
        problem, norm, StepRule(0.1), 25, momentum=momentum, init=init, records=END
    )
    model = NextTokenTransformer(stack(data), init)
    optimizer = SteepestDescent(
        [model.W_kq], lr=0.1, norm=norm, momentum=momentum, dampening=momentum
    )
    for _ in range(25):
        optimizer.zero_grad()
        model.loss("log_mass").sum().backward()
        optimizer.step()
    # singular vectors of nearly equal values amplify rounding
    assert np.abs(course.W[-1] - model.W_kq.detach().numpy()).max() < 1e-9


def test_factors_move_along_their_own_gradients() -> None:
    data = priority_graph(4, 6, 8, 8, 0)
    problem = Problem.of(data, "log_mass")
    rng = np.random.default_rng(2)
    F, Q = rng.standard_normal((2, 8, 3))
    course = factored_stage(problem, StepRule(1e-3), 1, init=(F, Q))
    weights = [torch.tensor(w, requires_grad=True) for w in (F, Q)]
    model = NextTokenTransformer(stack([data]))
    del model.W_kq
    model.W_kq = (weights[0] @ weights[1].T)[None]
    model.loss("log_mass").sum().backward()
    size = np.sqrt(sum(float((w.grad**2).sum()) for w in weights))
    for name, w in zip("KQ", weights, strict=True):
        assert course.factors[name][-1, 0] == pytest.approx(
            w.detach().numpy() - 1e-3 * w.grad.numpy() / size, abs=1e-14
        )
    assert course.W[-1, 0] == pytest.approx(
        course.factors["K"][-1, 0] @ course.factors["Q"][-1, 0].T
    )


def contexts_of_two_runs():
    """Contexts as tokens of two runs with other numbers of sentences, some with several labels, and
    the factors of four classes.
    """
    rng = np.random.default_rng(4)
    sets = [
        NextTokenData.from_sentences(
            [[0], [1], [2], [2]][:N], [0, 3, 1, 2][:N], rng.uniform(1, 2, N), E
        )
        for N, E in zip((4, 3), rng.standard_normal((2, 4, 5)), strict=True)
    ]
    return sets, rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 5, 3))


def test_factors_of_the_output_matrix_move_along_their_own_gradients() -> None:
    sets, outputs, values = contexts_of_two_runs()
    trajectory = factored_output_stage(sets, StepRule(1e-3), 1, init=(outputs, values), records=END)
    for run, data in enumerate(sets):
        output, value = (torch.tensor(w[run], requires_grad=True) for w in (outputs, values))
        logits = torch.tensor(data.embeddings[data.queries]) @ value @ output.T
        loss = torch.nn.functional.cross_entropy(
            logits, torch.tensor(data.labels), reduction="none"
        )
        mean = (torch.tensor(data.weights) * loss).sum()
        mean.backward()
        assert trajectory.loss[0, run] == pytest.approx(mean.item(), rel=1e-13)
        size = np.sqrt(sum(float((w.grad**2).sum()) for w in (output, value)))
        for name, w in (("O", output), ("V", value)):
            assert trajectory.factors[name][-1, run] == pytest.approx(
                w.detach().numpy() - 1e-3 * w.grad.numpy() / size, abs=1e-14
            )
    product = trajectory.factors["O"] @ trajectory.factors["V"].mT
    np.testing.assert_array_equal(trajectory.W, product)


def test_an_output_matrix_may_have_more_or_fewer_classes_than_there_are_tokens() -> None:
    sets, outputs, values = contexts_of_two_runs()
    start = outputs @ values.mT
    data = sets[0]
    more = np.concatenate([start[0], np.zeros((3, 5))])
    step = output_stage(data, StepRule(0.1, normalize=False), 1, init=more, records=END)
    W = torch.tensor(more, requires_grad=True)
    losses = torch.nn.functional.cross_entropy(
        torch.tensor(data.embeddings[data.queries]) @ W.T,
        torch.tensor(data.labels),
        reduction="none",
    )
    (torch.tensor(data.weights) * losses).sum().backward()
    assert step.W[-1, 0] == pytest.approx(more - 0.1 * W.grad.numpy(), abs=1e-14)
    for stage, init in (
        (output_stage, more[:3]),
        (factored_output_stage, (outputs[0, :3], values[0])),
    ):
        with pytest.raises(InputError, match="init has 3 classes and the largest label is 3"):
            stage(data, StepRule(0.1), 1, init=init)


def test_factors_answer_what_no_sentence_has_said() -> None:
    answers, contexts = [0, 2, 1, 3, 0], np.eye(5)[[0, 0, 1, 1, 2]] + np.eye(5)[[3, 4, 3, 4, 3]]
    data = NextTokenData.from_sentences([[j] for j in range(5)], answers, None, contexts)
    starts = 0.001 * np.random.default_rng(0).standard_normal((4, 9, 4))
    trajectory = factored_output_stage(
        [data] * 4, StepRule(0.05), 4000, init=(starts[:, :4], starts[:, 4:]), records=END
    )
    nuclear = max_margin(soft_label_margins(contexts, np.eye(4)[np.array(answers)]), "nuc")
    assert (trajectory.cosine(nuclear)[-1] > 1 - 1e-3).all()  # it falls like one over the steps
    assert (np.argmax(trajectory.W[-1] @ [0, 0, 1, 0, 1], axis=-1) == 2).all()


@pytest.mark.parametrize("norm", ["block", "joint"])
def test_joint_steps_are_those_of_torch(sets, norm, monkeypatch) -> None:
    room = compiled_runs.allocate_work  # what lies in fresh memory plays no part
    monkeypatch.setattr(
        compiled_runs, "allocate_work", lambda corpus: np.full_like(room(corpus), np.nan)
    )
    course = joint_stage(sets, StepRule(0.05), 30, output_lr=0.2, norm=norm, records=END)
    model = NextTokenTransformer(stack(sets))
    for _ in range(30):
        model.zero_grad()
        model.loss().sum().backward()
        with torch.no_grad():
            sizes = [
                torch.linalg.matrix_norm(p.grad, keepdim=True) for p in (model.W_kq, model.W_ov)
            ]
            if norm == "joint":
                sizes = [torch.hypot(*sizes)] * 2
            for parameter, size, lr in zip(
                (model.W_kq, model.W_ov), sizes, (0.05, 0.2), strict=True
            ):
                parameter -= torch.where(size > 0, lr * parameter.grad / size, 0.0)
    assert course.attention.W[-1] == pytest.approx(model.W_kq.detach().numpy(), abs=1e-11)
    assert course.output.W[-1] == pytest.approx(model.W_ov.detach().numpy(), abs=1e-11)
    assert course.attention.loss[-1] == pytest.approx(model.loss().detach().numpy(), rel=1e-10)


def test_training_converges_to_the_certified_solution_and_every_seed_alone_gives_the_same_bits(
    sets,
) -> None:
    together = trained(sets).attention
    solutions = max_margin_batch([order_margins(one.embeddings, arcs(one).arcs) for one in sets])
    cosine = together.cosine(list(solutions))[-1]
    assert cosine.min() > 0.97
    error = together.direction_error(list(solutions))[-1]
    np.testing.assert_allclose(error**2 / 2, 1 - cosine, rtol=1e-9)
    assert np.isfinite(together.log_gap).all()
    alone = trained(sets[1]).attention
    assert np.array_equal(alone.W[-1, 0], together.W[-1, 1])


def test_without_two_distinct_tokens_there_is_no_signal() -> None:
    single = NextTokenData.from_sentences([[0], [1], [1, 1, 1]], [1, 0, 0], embeddings=2)
    with pytest.raises(NoAttentionSignalError, match="single distinct token"):
        two_stage(single, StepRule(0.1), StepRule(0.1), (5, 5))
    with pytest.raises(NoAttentionSignalError, match="single token"):
        two_stage(single.select([0, 1]), StepRule(0.1), StepRule(0.1), (5, 5))
    with pytest.raises(InputError, match="no sentence of one token"):
        output_stage(single.select([2]), StepRule(0.1), 5)


def test_plain_descent_stops_where_the_gradient_is_exactly_zero() -> None:
    # Both tokens are followed by the same values, so attention cannot change the output.
    data = NextTokenData.from_sentences([[0, 1]], [0], embeddings=2, following=[0, 1])
    course = attention_stage(
        Problem.of(data, values=np.ones((2, 2))),
        StepRule(0.1),
        10,
        records=AtSteps([3]),
        watch=True,
    )
    assert course.stopped_at.tolist() == course.rises.tolist() == [0]
    assert not course.W.any()
    assert np.isnan(course.alignment(np.ones((1, 2, 2)))).all()


def test_duplicates_of_the_winner_count_as_mass_and_not_as_arcs() -> None:
    lists, labels = [[0], [1], [2], [1, 1, 1, 2, 0], [2, 1, 0]], [1, 2, 0, 2, 2]
    data = NextTokenData.from_sentences(lists, labels, embeddings=3)
    problem = Problem.of(data.select([3, 4]))
    missing = np.exp(problem.log_missing(np.zeros((1, 3, 3))))
    assert missing == pytest.approx([2 / 5, 2 / 3])
    course = two_stage(data, StepRule(0.1), StepRule(0.05), (300, 4000), records=END)
    (solution,) = max_margin_batch([order_margins(data.embeddings, arcs(data).arcs)])
    assert course.attention.cosine(solution)[-1, 0] > 0.99


@pytest.mark.parametrize(
    "field", ["start", "run_start", "token", "count", "query", "winner", "label"]
)
def test_sentences_that_do_not_fit_together_are_refused(sets, field) -> None:
    """Compiled passes know addresses alone, so nothing else would stop them."""
    problem = Problem.of(sets)
    given = getattr(problem, field)
    wrong = [given[:-1], given + 100, np.concatenate([given[:1], given])]
    for each in wrong[::2] if field == "count" else wrong:
        with pytest.raises(InputError, match=r"do not fit together|values has shape"):
            replace(problem, **{field: each})
    with pytest.raises(InputError, match="values has shape"):
        problem.gradient(np.zeros((2, K, K)), np.ones((2, K - 1, K)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: Problem.of([]), "at least one data set"),
        (lambda d: Problem.of(d, "hinge"), "choose from"),
        (lambda d: Problem.of(d, values=np.ones((3, 2))), r"\(12, classes\)"),
        (lambda d: Problem.of(d, values=np.full((K, K), np.nan)), "not finite"),
        (lambda d: Problem.of([d, bipartite(10, 3, 0)]), "one K and d"),
        (lambda d: Problem.of(replace(d, labels=np.roll(d.labels, 1))), "realises its label"),
        (
            lambda d: attention_stage(Problem.of(d), StepRule(0.1), 5, init=np.zeros((2, 2))),
            r"\(12, 12\)",
        ),
        (
            lambda d: attention_stage(Problem.of(d, "log_mass"), StepRule(0.1), 5, textbook=True),
            "cross_entropy",
        ),
        (
            lambda d: attention_stage(Problem.of(d), StepRule((0.1, 0.2, 0.3)), 5),
            r"lr has shape \(3,\); it must be a number or \(1,\)",
        ),
        (lambda d: StepRule(-1.0), "positive"),
        (lambda d: StepRule(0.1, decay=-1), "at least 0"),
        (lambda d: joint_stage(d, StepRule(0.1, normalize=False), 5), "normalised"),
        (
            lambda d: steepest_stage(Problem.of(d), Spectral(), StepRule(0.1), 5, momentum=1.0),
            "momentum",
        ),
        (
            lambda d: steepest_stage(Problem.of(d), Spectral(), StepRule(0.1, polyak=2.0), 5),
            "normalised",
        ),
        (lambda d: output_stage(d, StepRule(0.1, polyak=2.0), 5), "Polyak"),
    ],
)
def test_bad_input_is_one_sentence(sets, call, words) -> None:
    with pytest.raises(InputError, match=words) as error:
        call(sets[0])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "squared_softmax"])
def test_a_polyak_step_beyond_all_numbers_is_not_taken(loss) -> None:
    """These losses are not convex in attention: where it is all on the loser the gradient vanishes,
    and the loss stays above its floor.
    """
    problem = Problem.of(NextTokenData.from_sentences([[0, 1]], [1], following=[0, 1]), loss)
    start = np.array([[0.0, 800.0], [0.0, 0.0]])  # token 0 leads by 800: gradients of e^-800
    course = attention_stage(problem, StepRule(1.0, polyak=2.0), 5, init=start)
    assert course.stopped_at.tolist() == [0]
    np.testing.assert_array_equal(course.W[-1, 0], start)
    # e^-400 can be divided by
    near = attention_stage(problem, StepRule(1.0, polyak=2.0), 5, init=start / 2)
    assert near.stopped_at.tolist() != [0]


def test_polyak_rests_at_its_floor_and_goes_on_to_a_lower_one() -> None:
    """Under these values other tokens do better than the winners, so the loss starts below the
    problem's floor.
    """
    values = np.random.default_rng(0).standard_normal((12, 12))
    problem = Problem.of([total(12, 3, seed) for seed in range(3)], values=values)
    start = np.zeros((3, 12, 12))
    assert (problem.gap(start)[0] < 0).all()
    assert not attention_stage(problem, StepRule(1.0, polyak=2.0), 3, records=END).W.any()
    lowest = StepRule(1.0, polyak=2.0, loss_floor=tuple(-problem.floor()))  # zero
    G, top = problem.gradient(start)
    G = G * np.exp(top)[:, None, None]
    loss = np.array(
        [NextTokenTransformer(stack([one]), None, values.T).loss().item() for one in problem.data]
    )
    expected = -loss[:, None, None] / (2.0 * np.sum(G * G, axis=(-2, -1), keepdims=True)) * G
    np.testing.assert_allclose(
        attention_stage(problem, lowest, 1, records=END).W[-1], expected, rtol=1e-12, atol=1e-14
    )
