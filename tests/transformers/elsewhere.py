"""What a model computes on a second device beside what it computes on the processor; run as
``python elsewhere.py FOLDER``, where FOLDER holds ``bert``, ``tiny``, ``text.txt`` and
``notes.csv``. Prints numbers, JSON.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from second_device import NAME, second_device

import transformers
from attsvm.cli import main
from attsvm.optim import MirrorDescent, SteepestDescent, for_model
from attsvm.transformers import LogitGuard, capture


def command(*words: str) -> str:
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*words, "--quiet"])
    assert code in (0, 3), words
    return out.getvalue()


def probed(folder: Path, device: str, dtype: str) -> list[float]:
    words = ["probe", str(folder / "bert"), "--text", str(folder / "text.txt"), "--draws", "1"]
    out = folder / f"probe-{device[:3]}-{dtype}"
    told = command(*words, "--device", device, "--dtype", dtype, "--json", "--out", str(out))
    return [head["top"] for head in json.loads(told)["heads"]]


def fitted(folder: Path, device: str, dtype: str) -> str:
    out = folder / f"{device[:3]}-{dtype}" / "run"  # states are kept beside the run
    words = ["fit", str(folder / "notes.csv"), "--encoder", str(folder / "tiny")]
    words += ["--steps", "40", "--records", "4", "--device", device, "--dtype", dtype]
    command(*words, "--out", str(out))
    return (out / "predictions.csv").read_text(encoding="utf-8")


def models() -> dict[str, torch.nn.Module]:
    """Attention by the registry, by the fused function, by hand, and torch's own."""
    t, sizes = transformers, {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    torch.manual_seed(0)
    return {
        "gpt2": t.GPT2Model(t.GPT2Config(**sizes, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)),
        "bloom": t.BloomModel(t.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=100)),
        "torch": torch.nn.Sequential(
            torch.nn.Embedding(100, 16),
            torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        ),
    }


def trained(model: torch.nn.Module, ids: torch.Tensor, device: str, action: Any) -> list[float]:
    """Largest logits and norms of three steps, guarded."""
    model, ids = copy.deepcopy(model).train().to(device), ids.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)
    guard = LogitGuard(model, tau=0.1, action=action, every=1, optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        output = model(ids)
        output = output if isinstance(output, torch.Tensor) else output[0]
        output.square().mean().backward()
        optimizer.step()
    guard.remove()
    return [number for head in guard.metrics() for number in (head.largest, head.norm)]


def moved(model: torch.nn.Module, ids: torch.Tensor, device: str) -> list[float]:
    """What a guard measures before and after its model has moved."""
    model = copy.deepcopy(model).train()
    guard = LogitGuard(model, every=1)
    for place in ("cpu", device):
        model.to(place)(ids.to(place))
    return [number for head in guard.metrics() for number in (head.largest, head.turned)]


def recorded(model: torch.nn.Module, ids: torch.Tensor, device: str) -> list[torch.Tensor]:
    model, ids = copy.deepcopy(model).eval().to(device), ids.to(device)
    with torch.no_grad(), capture(model) as recording:
        model(ids)
    layers = recording.layers.values()
    weights = [text.weights() for layer in layers for text in layer.texts]
    projections = [layer.projection for layer in layers if layer.projection is not None]
    return [*weights, *(maps.W_Q for maps in projections)]


def stepped(make: Any, device: str) -> list[torch.Tensor]:
    """The weights after two steps of an optimiser and one after its state was loaded."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True).to(device)
    x = torch.randn(4, 5, 8).to(device)
    optimizer = make(layer)
    for step in range(3):
        optimizer.zero_grad()
        (layer(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
        if step == 1:
            optimizer.load_state_dict(optimizer.state_dict())
    return [parameter.detach().cpu() for parameter in layer.parameters()]


OPTIMISERS = {
    "spectral": lambda layer: SteepestDescent(
        [p for p in layer.parameters() if p.ndim == 2], lr=0.01, norm="spectral", momentum=0.9
    ),
    "l1": lambda layer: SteepestDescent(layer.parameters(), lr=0.01, norm="l1"),
    "mirror": lambda layer: MirrorDescent(layer.parameters(), lr=0.01, p=3.0),
    "for_model": lambda layer: for_model(layer, lr=0.01),
}


def largest_difference(here: Any, there: Any) -> float:
    return max(
        float((torch.as_tensor(x) - torch.as_tensor(y)).abs().max())
        for x, y in zip(here, there, strict=True)
    )


def differences(folder: Path) -> dict[str, float]:
    """Between the processor and the second device; 1 for tables that are not equal."""
    ids = torch.arange(24).reshape(2, 12)
    tasks: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        tasks[f"probe {dtype}"] = lambda device, dtype=dtype: probed(folder, device, dtype)
    tasks["fit"] = lambda device: [fitted(folder, device, "float32")]
    for name, model in models().items():
        tasks[f"capture {name}"] = lambda device, model=model: recorded(model, ids, device)
        if name != "bloom":
            for action in ("warn", "clip"):
                tasks[f"{action} {name}"] = lambda device, model=model, action=action: trained(
                    model, ids, device, action
                )
    tasks["moved"] = lambda device: moved(models()["gpt2"], ids, device)
    for name, make in OPTIMISERS.items():
        tasks[f"optim {name}"] = lambda device, make=make: stepped(make, device)
    result = {}
    for name, task in tasks.items():
        here = task("cpu")
        with second_device():
            there = task(NAME)
        result[name] = float(here != there) if name == "fit" else largest_difference(here, there)
    return result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(differences(Path(sys.argv[1]))))
