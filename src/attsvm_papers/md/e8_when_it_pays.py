"""When l1.1 pays: few epochs, few examples, wrong labels, pruned attention.

Small vision transformers are trained on images of MNIST by un-normalised mirror descent with p =
1.1 and p = 2 (gradient descent) on all parameters, and by Adam. There are four settings: 2000
images and 20 epochs; the same images and 3 epochs; 250 images and 60 epochs; 2000 images of which a
fifth has its label drawn anew, and 20 epochs. In each setting each optimiser has the rate with
which a training as long, on a seed of its own, ends with the highest validation accuracy. Compared
are test accuracies at the last epoch, with right labels, and in the first setting what is lost when
each query keeps only its top token of attention.

Source: this project

Notes: Small: two blocks of width 32 on patches of 7 pixels, five seeds. It is the scale small of
md-4 with other numbers of epochs and examples, and says nothing about texts or larger networks.
"""

from dataclasses import replace

from attsvm_papers import kit
from attsvm_papers.md.e4_accuracy import IMAGES, LARGEST, swapped
from attsvm_papers.networks.accuracy_table import compared, difference, pruning_cost, trained
from attsvm_papers.networks.examples import Task
from attsvm_papers.networks.network_pictures import plot_accuracy, plot_courses, plot_differences
from attsvm_papers.networks.trained_networks import (  # noqa: F401
    Method,
    Networks,
    Study,
    cells,
    rates_inside,
    run,
    then,
)

WHOLE = replace(IMAGES, epochs=20, tuning_epochs=20, stop_accuracy=0.0)
TASKS = (
    WHOLE,
    replace(WHOLE, data="mnist-short", epochs=3, tuning_epochs=3),
    replace(WHOLE, data="mnist-few", train=250, epochs=60, tuning_epochs=60),
    replace(WHOLE, data="mnist-noisy", noise=0.2),
)
METHODS = (
    Method("l1.1", (0.0011, 0.0022, 0.0044)),
    Method("l2", (0.00125, 0.0025, 0.005)),
    Method("adam", (1e-3, 2e-3, 4e-3)),
)
TITLES = {
    "mnist": "2000 images, 20 epochs",
    "mnist-short": "2000 images, 3 epochs",
    "mnist-few": "250 images, 60 epochs",
    "mnist-noisy": "a fifth of the labels wrong",
    "digits": "digits",
}
QUICK = Networks(
    (
        Study(
            Task("digits", 200, 100, 200, 16, 2, 2, 32, 0.0, 10, 3, patch=4, noise=0.2),
            (Method("l1.1", (3e-3,)), Method("l2", (0.01,)), Method("adam", (5e-3,))),
        ),
    ),
    seeds=2,
)
SCALES = kit.Scales(
    Networks(tuple(Study(task, METHODS) for task in TASKS), seeds=5, widen=True), QUICK
)


def on(data, *methods):
    return {f"trainings on {data}": lambda e: trained(e, data, *methods)}


@kit.each(
    kit.claim(
        kit.at_least(0.0, "points; lower end of the 95% interval over seeds and images"),
        id=f"E8{letter}",
        statement=f"{TITLES[data].capitalize()}: p = 1.1 is more accurate than {{words}}.",
        assumes=on(data, "l1.1", other),
        null=swapped("l1.1", other),
        data=data,
        other=other,
        words=words,
    )
    for letter, data, other, words in (
        ("a", "mnist", "l2", "gradient descent"),
        ("b", "mnist", "adam", "Adam"),
        ("c", "mnist-short", "l2", "gradient descent"),
        ("d", "mnist-short", "adam", "Adam"),
        ("e", "mnist-few", "l2", "gradient descent"),
        ("f", "mnist-few", "adam", "Adam"),
        ("g", "mnist-noisy", "l2", "gradient descent"),
        ("h", "mnist-noisy", "adam", "Adam"),
    )
)
def lead(e, data, other):
    return difference(e, data, "l1.1", other).low


@kit.each(
    kit.claim(
        kit.at_least(0.0, "points; lower end of the 95% interval over seeds"),
        id=f"E8{letter}",
        statement=f"Keeping each query's top token costs {words} more accuracy than p = 1.1.",
        assumes=on("mnist", "l1.1", other),
        null=swapped("l1.1", other),
        other=other,
    )
    for letter, other, words in (("i", "l2", "gradient descent"), ("j", "adam", "Adam"))
)
def survival(e, other):
    one, more = (pruning_cost(e, "mnist", name)[:, 0] for name in ("l1.1", other))
    return kit.interval(more - one).low


@kit.claim(
    kit.at_least(1.0, "a best rate at the end of its grid would ask for another; 1 is inside"),
    assumes=on("mnist", "l1.1", "l2", "adam"),
    null=LARGEST,
)
def E8k(e):
    """Every rate that was chosen lies inside the rates that were tried."""
    return rates_inside(e)


def plot(evidence):
    rows = compared(evidence)
    yield plot_accuracy(rows, TITLES)
    yield plot_differences(rows, TITLES)
    yield plot_courses(rows, TITLES)
