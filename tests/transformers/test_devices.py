"""Where a model runs, in which type, and recordings on the disk."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoder import save_tiny_bert

from attsvm.cli import main
from attsvm.transformers import Recording, audit, capture
from attsvm.transformers.layers_on_disk import LayersOnDisk

from .conftest import batch, family, recorded, saved, transformers

accelerate = pytest.importorskip("accelerate")


def assert_equal_layers(recording: Recording, other: Recording) -> None:
    assert list(recording.layers) == list(other.layers)
    for layer, expected in zip(recording.layers.values(), other.layers.values(), strict=True):
        assert (layer.number, layer.cross, layer.causal) == (
            expected.number,
            expected.cross,
            expected.causal,
        )
        for text, wanted in zip(layer.texts, expected.texts, strict=True):
            assert text.text == wanted.text
            torch.testing.assert_close(text.weights(), wanted.weights(), atol=1e-6, rtol=0)
        assert (layer.projection is None) == (expected.projection is None)
        if layer.projection is not None and expected.projection is not None:
            for name in ("W_K", "W_Q", "b_Q", "key_inputs", "query_inputs"):
                torch.testing.assert_close(
                    getattr(layer.projection, name), getattr(expected.projection, name)
                )


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_recording_on_the_disk_is_that_in_memory(tmp_path: Path, name: str) -> None:
    """And nothing is left of it."""
    model = family(name)
    with torch.no_grad(), capture(model, folder=tmp_path) as recording:
        for _ in range(3):
            model(**batch(name))
    with torch.no_grad(), capture(model) as in_memory:
        for _ in range(3):
            model(**batch(name))
    assert_equal_layers(recording, in_memory)
    heads = [audit(each, norms=()).table() for each in (recording, in_memory)]
    np.testing.assert_equal(*heads)
    del recording
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_layers_on_the_disk_are_in_memory_one_at_a_time(tmp_path: Path) -> None:
    """In blocks of one text each."""
    in_memory = recorded(family("gpt2"), "gpt2")
    on_disk, layers = LayersOnDisk(tmp_path, block_size=1), copy.deepcopy(in_memory.layers)
    for i in range(2):
        for number, layer in in_memory.layers.items():
            maps = layer.projection
            assert maps is not None
            one = dataclasses.replace(
                maps, key_inputs=[maps.key_inputs[i]], query_inputs=[maps.query_inputs[i]]
            )
            layers[number] = dataclasses.replace(layer, texts=[layer.texts[i]], projection=one)
        on_disk.move(layers)
        assert not any(layer.texts for layer in layers.values())
    assert_equal_layers(Recording(on_disk), in_memory)
    first = weakref.ref(on_disk[0])
    assert on_disk[0] is first()
    assert on_disk[1].number == 1
    gc.collect()
    assert first() is None


@pytest.mark.parametrize(
    "device_map",
    [
        "auto",
        {"wte": "cpu", "wpe": "cpu", "h.0": "cpu", "h.1": "disk", "ln_f": "cpu"},
    ],
)
def test_models_that_accelerate_spreads_are_recorded(tmp_path: Path, device_map: Any) -> None:
    """Weights of one block are loaded from the disk when it runs, and are nowhere afterwards."""
    plain = family("gpt2").eval()
    expected = recorded(plain, "gpt2")
    if device_map == "auto":
        plain.save_pretrained(tmp_path / "model")
        spread = type(plain).from_pretrained(tmp_path / "model", device_map="auto")
    else:
        spread = accelerate.dispatch_model(
            copy.deepcopy(plain), device_map, main_device="cpu", offload_dir=tmp_path / "weights"
        )
        assert spread.h[1].attn.c_attn.weight.is_meta
    assert_equal_layers(recorded(spread, "gpt2"), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["bert", "demo"])
def test_types_give_the_same_heads_to_their_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, dtype: str
) -> None:
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w5 w6\nw7 w1 w2 w2 w8\n", "utf-8")
    command = ["probe", name, "--tokens", "20"]
    if name == "bert":
        command = [
            "probe",
            str(saved(tmp_path / "bert", 300.0)),
            "--text",
            str(tmp_path / "text.txt"),
        ]
    capsys.readouterr()
    heads = []
    for options in ([], ["--dtype", dtype, "--device", "cpu"]):
        out = tmp_path / f"out-{len(options)}"
        assert main([*command, *options, "--out", str(out), "--statistics", "--json"]) == 0
        heads.append(json.loads(capsys.readouterr().out)["heads"])
    top, top_in_type = (np.array([row["top"] for row in rows]) for rows in heads)
    eps = torch.finfo(getattr(torch, dtype)).eps
    assert 0 < np.abs(top - top_in_type).max() < 16 * eps  # logits of a few nats, rounded
    assert (top > 0.2).any()


def test_another_number_of_the_processor_is_the_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    tables = []
    for device in ("cpu", "cpu:0", "cpu:1"):
        command = ["probe", "demo", "--tokens", "20", "--statistics", "--json", "--quiet"]
        assert main([*command, "--device", device, "--out", str(tmp_path / device)]) == 0
        tables.append(json.loads(capsys.readouterr().out)["heads"])
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.slow
@pytest.mark.processes
def test_a_second_device_gives_the_numbers_of_the_processor(tmp_path: Path) -> None:
    """Through ``probe``, ``fit --encoder``, ``capture``, the guard and the optimisers; tensors of
    the two devices never meet, and none becomes an array unless it is copied to the processor.
    """
    if not hasattr(torch._C, "_acc"):
        pytest.skip("this test needs torch 2.9, which takes devices written in Python")
    save_tiny_bert(tmp_path / "tiny", ["calm", "alarm"], size=16)
    saved(tmp_path / "bert", 300.0)
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w5 w6\nw7 w1 w2 w2 w8\n", "utf-8")
    rows = [f"w{i % 7} {('calm', 'alarm')[i % 2]} w{i % 5},{i % 2}" for i in range(40)]
    (tmp_path / "notes.csv").write_text("\n".join(["text,label", *rows, ""]), "utf-8")
    script = Path(__file__).with_name("elsewhere.py")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    differences = json.loads(ended.stdout)
    # AdamW divides small gradients by their size, and with them their rounding
    adaptive = {"warn gpt2", "clip gpt2", "warn torch", "clip torch", "optim for_model"}
    for name, difference in differences.items():
        rounding = 1e-2 if name in {*adaptive, "probe bfloat16"} else 1e-5
        assert difference <= rounding, name
    assert set(differences) >= {"fit", "probe float32", "probe bfloat16", *adaptive}


def test_memory_of_a_device_that_runs_out_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, text = saved(tmp_path / "bert"), tmp_path / "text.txt"
    text.write_text("w1 w2 w3\n", "utf-8")
    plain = transformers.AutoModel.from_pretrained

    def load(name: str, **options: Any) -> Any:
        model = plain(name, **options)

        @functools.wraps(model.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

        model.forward = forward
        return model

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", load)
    capsys.readouterr()
    assert main(["probe", str(folder), "--text", str(text), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "bert does not fit into the memory of cpu; give option --dtype bfloat16," in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--device meta", "device 'meta' is unknown; this machine has cpu"),
        ("--device cuda:77", "device cuda:77 with float32 is not available"),
        ("--device cpu --device-map auto", "give option --device or option --device-map, not both"),
        ("--device-map auto", "'demo' is a small model; leave option --device-map out"),
        ("--dtype float8", "--dtype is 'float8'"),
    ],
)
def test_devices_that_are_not_here_are_one_sentence(
    capsys: pytest.CaptureFixture[str], options: str, sentence: str
) -> None:
    assert main(["probe", "demo", *options.split(), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
