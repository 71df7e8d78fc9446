"""Normalised runs in single precision: the kink in the norm of the published plot of three
sequences (mmts-3), and a local limit that is lost (mmts-1).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from attsvm.datasets import Toy


def published_prompts(
    problem: Toy, starts: ArrayLike, steps: int, lr: float
) -> NDArray[np.float64]:
    """Prompts ``(runs, steps, 2)`` under normalised descent as published: float32, softmax and its
    gradient as they are written.
    """
    assert problem.lifted is not None
    tokens = torch.tensor(problem.lifted.tokens, dtype=torch.float32)
    keys = torch.tensor(problem.keys, dtype=torch.float32)
    head = torch.tensor(problem.value_head, dtype=torch.float32)
    runs = []
    for start in np.asarray(starts):
        p = torch.tensor(start, dtype=torch.float32, requires_grad=True)
        prompts = []
        for _ in range(steps):
            prompts.append(p.detach().numpy().copy())
            s = torch.softmax(tokens @ keys.T @ p, dim=-1)
            loss = torch.log1p(torch.exp(-((tokens.mT @ s[..., None])[..., 0] @ head))).mean()
            (gradient,) = torch.autograd.grad(loss, p)
            with torch.no_grad():
                p -= lr * gradient / gradient.norm()
        runs.append(prompts)
    return np.array(runs, dtype=np.float64)


def step_of_kink(norms: NDArray[Any]) -> int:
    """The first step whose length differs from that of the steps before by more than a part in
    twenty, after step 50; 0 where none does.
    """
    growth = np.diff(norms)
    usual = np.median(growth[50:120])
    late = np.flatnonzero(np.abs(growth[50:] / usual - 1.0) > 0.05)
    return int(late[0]) + 50 if len(late) else 0
