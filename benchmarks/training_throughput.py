"""Tokens per second of a training step of every optimiser, beside the same step with torch's fused
AdamW.

    python benchmarks/training_throughput.py [--network full|medium|decoder] [--rounds N]
        [--batch N] [--parts N] [--only NAME ...] [--device cuda] [--precision bf16] [--profile]

``full`` is the published sentiment model (17.23 million parameters), ``medium`` that of the scale
medium (.6 million), both on texts with the lengths of tokenised reviews (log-normal, median 220,
cut at 512 or 128); ``decoder`` is the decoder of pruning-1 (two blocks of width 128, texts of 64
characters). In every round each optimiser takes one step on the same texts, in an order that is
drawn. A ratio is the median over rounds of AdamW's time in a round by the other's, with a 95%
bootstrap interval over rounds. On a CPU seconds are those of the processor, so that other
programmes do not count.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, record_function

from attsvm_papers.heads.decoder import Decoder, Sizes
from attsvm_papers.networks.classifiers import TextClassifier
from attsvm_papers.networks.labelled import Examples
from attsvm_papers.networks.training import Plan, logits_of, optimizer_of, summed_loss
from attsvm_papers.pruning.decoders import OPTIMISERS, RATES, pruning_optimiser

PEER = "torch AdamW fused"
LETTERS = 65
MEDIUM = {"vocabulary": 8000, "length": 128, "width": 64, "heads": 2, "hidden": 128, "dropout": 0.3}


def reviews(n: int, vocabulary: int, length: int) -> Examples:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(220), 0.6, n).astype(int), 20, length)
    mask = np.arange(length) < lengths[:, None]
    ids = np.where(mask, rng.integers(5, vocabulary, (n, length)), 0)
    labels = rng.integers(0, 2, n)
    return Examples(torch.tensor(ids), torch.tensor(labels), torch.tensor(mask))


def classifiers(options):
    """The gradients and the optimiser of each contender, and the tokens of a step."""
    sizes = MEDIUM if options.network == "medium" else {}
    texts = reviews(options.batch, sizes.get("vocabulary", 30522), sizes.get("length", 512))
    examples = texts.to(torch.device(options.device))
    (pieces,) = examples.pieces([np.arange(options.batch)], options.parts)

    def gradients(model):
        for piece in pieces:
            inputs, labels = examples.take(piece)
            with record_function("1 forward"):
                loss = summed_loss(logits_of(model, inputs, options.precision == "bf16"), labels)
            with record_function("2 backward"):
                loss.backward()

    found = {}
    for name, settings in {
        "MirrorDescent p=1.1": {"optimizer": "mirror", "p": 1.1},
        "MirrorDescent p=2": {"optimizer": "mirror", "p": 2.0},
        "MirrorDescent p=3": {"optimizer": "mirror", "p": 3.0, "lr": 4e-6},
        "spectral, Adam beside": {"optimizer": "spectral", "lr": 1e-3},
        "torch Adam fused": {"optimizer": "adam", "lr": 1e-4},
        "torch SGD, momentum": {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9},
        PEER: {"optimizer": "adamw", "lr": 1e-4},
    }.items():
        torch.manual_seed(0)
        model = TextClassifier(**sizes).to(options.device)
        optimizer = optimizer_of(model, Plan(**{"lr": 8e-4, "epochs": 1, "batch": 1} | settings))
        found[name] = partial(gradients, model), optimizer
    return found, int(examples.lengths.sum())


def decoders(options):
    """The same for the decoder of characters."""
    sizes = Sizes(batch=options.batch)
    texts = torch.randint(LETTERS, (sizes.batch, sizes.context + 1))

    def gradients(model):
        with record_function("1 forward"):
            loss = cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
        with record_function("2 backward"):
            loss.backward()

    found = {}
    for name in OPTIMISERS:
        torch.manual_seed(0)
        model = Decoder(LETTERS, sizes)
        found[name] = partial(gradients, model), pruning_optimiser(model, name, RATES[name], 0.0)
    found[PEER] = found.pop("adamw")
    return found, sizes.batch * sizes.context


def step(gradients, optimizer):
    optimizer.zero_grad(set_to_none=True)
    gradients()
    with record_function("3 optimizer"):
        optimizer.step()


def clocked(device, work):
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.perf_counter if device == "cuda" else time.process_time
    before = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--network", choices=("full", "medium", "decoder"), default="full")
    parser.add_argument("--only", nargs="*", default=[], help="words in names, beside AdamW's")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    build = decoders if options.network == "decoder" else classifiers
    contenders, tokens = build(options)
    contenders = {
        name: contender
        for name, contender in contenders.items()
        if name == PEER or not options.only or any(word in name for word in options.only)
    }
    names = list(contenders)
    order = np.random.default_rng(0)
    seconds = np.empty((options.rounds, len(names)))
    for number in range(-1, options.rounds):  # the first round compiles and allocates
        for at in order.permutation(len(names)):
            spent = clocked(options.device, partial(step, *contenders[names[at]]))
            seconds[max(number, 0), at] = spent
    print(
        f"{options.network}, {options.batch} texts, {tokens} tokens, {options.parts} parts,"
        f" {options.device}, {options.precision}, {options.rounds} rounds"
    )
    draws = order.integers(options.rounds, size=(2000, options.rounds))
    for at, name in enumerate(names):
        own = seconds[:, at]
        ratios = seconds[:, names.index(PEER)] / own
        low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975))
        print(
            f"{name:22s}{tokens / np.median(own):10.0f} tokens/s{np.median(ratios):8.3f} of"
            f" AdamW's ({low:.3f} to {high:.3f})   {1e3 * np.median(own):.1f} ms a step"
        )
    if options.profile:
        for name in names:
            activities = [
                ProfilerActivity.CPU,
                *([ProfilerActivity.CUDA] if options.device == "cuda" else []),
            ]
            with profile(activities=activities) as found:
                step(*contenders[name])
            stages = {event.key: event for event in found.key_averages() if event.key[0].isdigit()}
            spent = {
                key: getattr(event, f"{options.device}_time_total") for key, event in stages.items()
            }
            total = sum(spent.values())
            print(
                f"{name}: "
                + ", ".join(
                    f"{key[2:]} {value / total:.1%}" for key, value in sorted(spent.items())
                )
            )
            print(
                found.key_averages().table(
                    sort_by=f"self_{options.device}_time_total",
                    row_limit=8,
                    max_name_column_width=40,
                )
            )


if __name__ == "__main__":
    main()
