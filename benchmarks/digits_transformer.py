"""The table of docs/optimisers.md: one small transformer on scikit-learn's digits, attention
trained in different geometries.

    python benchmarks/digits_transformer.py [--seeds N]

Everything but attention is trained by AdamW at 1e-2, the best of {1e-3, 3e-3, 1e-2, 2e-2} for AdamW
on everything. 12 epochs, batches of 64, linear decay; 397 test images. "near zero" is the share of
query and key entries below 1% of the largest.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from attsvm.norms import Spectral
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent, split_params

EPOCHS, TRAIN = 12, 1400


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 32)
        self.position = nn.Parameter(0.1 * torch.randn(16, 32))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x) + self.position).mean(dim=1))


def beside_adamw(build):
    def optimizer(net, lr):
        split = split_params(net)
        return CombinedOptimizer(
            [build(split.attention, lr), torch.optim.AdamW(split.rest, lr=1e-2)]
        )

    return optimizer


def mirror(p, **settings):
    return beside_adamw(lambda groups, lr: MirrorDescent(groups, lr=lr, p=p, **settings))


OPTIMIZERS = {
    "AdamW on everything": (
        lambda net, lr: torch.optim.AdamW(net.parameters(), lr=lr),
        [1e-3, 3e-3, 1e-2, 2e-2],
    ),
    "SGD on everything, momentum 0.9": (
        lambda net, lr: torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9),
        [0.1, 0.3],
    ),
    "attention frozen": (beside_adamw(lambda groups, lr: torch.optim.SGD(groups, lr=lr)), [0.0]),
    "AdamW, attention with a lr of its own": (
        beside_adamw(lambda groups, lr: torch.optim.AdamW(groups, lr=lr)),
        [3e-3, 1e-2, 2e-2],
    ),
    "MirrorDescent p=1.1, momentum 0.9": (mirror(1.1, momentum=0.9), [0.01, 0.03, 0.1, 0.3]),
    "MirrorDescent p=1.5, momentum 0.9": (mirror(1.5, momentum=0.9), [0.03, 0.1, 0.3]),
    "MirrorDescent p=2, momentum 0.9": (mirror(2, momentum=0.9), [0.01, 0.1, 0.3]),
    "MirrorDescent p=3, momentum 0.9": (mirror(3, momentum=0.9), [1e-4, 1e-3, 1e-2]),
    "MirrorDescent p=1.1, normalised": (mirror(1.1, normalize=True), [0.003, 0.01, 0.03]),
    "SteepestDescent spectral, momentum 0.9": (
        beside_adamw(
            lambda groups, lr: SteepestDescent(
                groups, lr=lr, norm=Spectral(), momentum=0.9, nesterov=True
            )
        ),
        [0.003, 0.01, 0.03, 0.1],
    ),
}


def run(build, lr, seed, data):
    tokens, labels, order = data
    train, test = order[:TRAIN], order[TRAIN:]
    torch.manual_seed(seed)
    net = Net()
    optimizer = build(net, lr)
    shuffle = torch.Generator().manual_seed(seed)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1.0, 0.05, total_iters=EPOCHS * (TRAIN // 64 + 1)
    )
    for _ in range(EPOCHS):
        for batch in train[torch.randperm(TRAIN, generator=shuffle)].split(64):
            optimizer.zero_grad()
            cross_entropy(net(tokens[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        weights = net.encoder.self_attn.in_proj_weight[:64].abs()
        accuracy = (net(tokens[test]).argmax(dim=1) == labels[test]).double().mean()
        loss = cross_entropy(net(tokens[train]), labels[train])
        return torch.tensor([accuracy, loss, (weights < 0.01 * weights.max()).double().mean()])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    digits = load_digits()
    tokens = (
        torch.tensor(digits.data / 16, dtype=torch.float32)
        .reshape(-1, 4, 2, 4, 2)
        .transpose(2, 3)
        .reshape(-1, 16, 4)
    )
    data = (
        tokens,
        torch.tensor(digits.target),
        torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0)),
    )
    print(f"{'':40s}{'lr':>8}{'accuracy':>10}{'train loss':>12}{'near zero':>11}")
    for name, (build, rates) in OPTIMIZERS.items():
        for lr in rates:
            accuracy, loss, near_zero = (
                torch.stack([run(build, lr, seed, data) for seed in seeds]).mean(dim=0).tolist()
            )
            print(f"{name:40s}{lr:8g}{accuracy:10.4f}{loss:12.4f}{near_zero:11.3f}", flush=True)


if __name__ == "__main__":
    main()
