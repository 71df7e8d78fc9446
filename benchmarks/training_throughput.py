"""Tokens per second of the sentiment model: a training step of every optimiser beside the same step
with torch's fused AdamW.

    python benchmarks/training_throughput.py [--rounds N] [--batch N] [--device cuda]
        [--precision bf16] [--parts N] [--profile] [--medium]

The full model (17.23 million parameters), or that of the scale medium (.6 million), texts with the
lengths of tokenised reviews (log-normal, median 220, cut at 512 or 128), one step of each optimiser
in turn; the ratio is of medians. On a CPU seconds are those of the processor, so that other
programmes do not count.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from attsvm.models import TextClassifier
from attsvm.training import TrainingPlan, build_optimizer
from attsvm.training.evaluation import logits_of, matrix_products, summed_loss
from attsvm.training.labelled import Examples, Placed, Schedule

MEDIUM = {"vocabulary": 8000, "length": 128, "width": 64, "heads": 2, "hidden": 128, "dropout": 0.3}


def reviews(n: int, vocabulary: int, length: int) -> Examples:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(220), 0.6, n).astype(int), 20, length)
    mask = np.arange(length) < lengths[:, None]
    ids = np.where(mask, rng.integers(5, vocabulary, (n, length)), 0)
    return Examples(ids, rng.integers(0, 2, n), mask)


def step(model, optimizer, examples, schedule, precision):
    optimizer.zero_grad(set_to_none=True)
    for index, longest in schedule.pieces(0):
        inputs, labels = examples.take(index, longest)
        with record_function("1 forward"):
            loss = summed_loss(logits_of(model, inputs, precision, 2), labels)
        with record_function("2 backward"):
            loss.backward()
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
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--medium", action="store_true")
    options = parser.parse_args()
    sizes = MEDIUM if options.medium else {}
    if options.device == "cpu":
        torch.set_num_threads(1)
    texts = reviews(options.batch, sizes.get("vocabulary", 30522), sizes.get("length", 512))
    examples = Placed(texts, torch.device(options.device))
    schedule = Schedule(examples, [np.arange(options.batch)], options.parts)
    contenders = {}
    for name, settings in {
        "MirrorDescent p=1.1": {"optimizer": "mirror", "p": 1.1},
        "MirrorDescent p=2": {"optimizer": "mirror", "p": 2.0},
        "MirrorDescent p=3": {"optimizer": "mirror", "p": 3.0, "lr": 4e-6},
        "spectral, Adam beside": {"optimizer": "spectral", "lr": 1e-3},
        "torch Adam fused": {"optimizer": "adam", "lr": 1e-4},
        "torch SGD, momentum": {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9},
        "torch AdamW fused": {"optimizer": "adamw", "lr": 1e-4},
    }.items():
        torch.manual_seed(0)
        model = TextClassifier(**sizes).to(options.device)
        contenders[name] = model, build_optimizer(model, TrainingPlan(**{"lr": 8e-4} | settings))
    seconds = {name: [] for name in contenders}
    with matrix_products(options.precision):
        for number in range(options.rounds + 1):
            for name, (model, optimizer) in contenders.items():
                work = partial(step, model, optimizer, examples, schedule, options.precision)
                spent = clocked(options.device, work)
                if number:  # the first round compiles and allocates
                    seconds[name].append(spent)
        tokens, peer = int(examples.lengths.sum()), float(np.median(seconds["torch AdamW fused"]))
        print(
            f"{options.batch} texts, {tokens} tokens, {options.parts} parts, {options.device},"
            f" {options.precision}"
        )
        for name, values in seconds.items():
            median = float(np.median(values))
            print(
                f"{name:22s}{tokens / median:10.0f} tokens/s{peer / median:8.3f} of AdamW's  "
                f" spread {min(values):.3f}..{max(values):.3f} s"
            )
        if options.profile:
            for name in ("MirrorDescent p=1.1", "torch AdamW fused"):
                activities = [
                    ProfilerActivity.CPU,
                    *([ProfilerActivity.CUDA] if options.device == "cuda" else []),
                ]
                with profile(activities=activities) as found:
                    step(*contenders[name], examples, schedule, options.precision)
                stages = {
                    event.key: event for event in found.key_averages() if event.key[0].isdigit()
                }
                spent = {
                    key: getattr(event, f"{options.device}_time_total")
                    for key, event in stages.items()
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
