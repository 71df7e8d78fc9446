"""What looking at a model costs, in CPU seconds of one thread; the cost that docs/probe.md names.

    python benchmarks/probe_cost.py capture
    python benchmarks/probe_cost.py long
    python benchmarks/probe_cost.py audit FOLDER --gguf SmolLM2-135M-Instruct.Q4_1.gguf --text TEXT
    python benchmarks/probe_cost.py band

``capture`` runs a Llama of width 576 and a GPT-2 of width 768, two layers each with random weights,
on 2,048 tokens, in turns outside and inside the block, and compares medians. ``long`` runs one
layer of the Llama's on 8,192 tokens and says what was kept and by how much the largest memory of
the process grew, for the block and then for the statistics. ``audit`` is the whole audit of a
model on 8 pieces of 128 tokens. ``band`` says how many heads with random weights on the stories
model's keys have zero in their interval of the cosine minus its null.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import transformers
from attsvm.transformers import audit, capture, demo_model

TOKENS, LONG, PIECES, PIECE = 2048, 8192, 8, 128


def llama(layers: int, positions: int) -> Any:
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": positions}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 1000}
    config = transformers.LlamaConfig(**sizes, **heads, num_hidden_layers=layers)
    return transformers.LlamaModel(config).eval()


def gpt2(layers: int, positions: int) -> Any:
    config = transformers.GPT2Config(n_layer=layers, n_positions=positions, vocab_size=1000)
    return transformers.GPT2Model(config).eval()


def seconds(call: Any) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def captured(repeats: int = 5) -> None:
    for name, make in (("Llama, width 576", llama), ("GPT-2, width 768", gpt2)):
        model, ids = make(2, TOKENS), torch.randint(0, 1000, (1, TOKENS))

        def plain(model: Any = model, ids: torch.Tensor = ids) -> None:
            model(ids, use_cache=False)

        def inside(plain: Any = plain, model: Any = model) -> None:
            with capture(model):
                plain()

        plain(), inside()
        taken = [(seconds(plain), seconds(inside)) for _ in range(repeats)]
        outside, within = (statistics.median(each) for each in zip(*taken, strict=True))
        print(f"{name}, {TOKENS} tokens: {outside:.2f} s, inside {within:.2f} s", end=", ")
        print(f"{within / outside:.2f} times")


def largest() -> float:
    """Megabytes that the process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def long() -> None:
    model, ids = llama(1, LONG), torch.randint(0, 1000, (1, LONG))
    model(ids[:, :64], use_cache=False)
    levels = []
    model(ids, use_cache=False)
    levels.append(largest())
    with capture(model) as recording:
        model(ids, use_cache=False)
    levels.append(largest())
    audit(recording, norms=())
    levels.append(largest())
    (text,) = next(iter(recording.layers.values())).texts
    kept = text.queries.nbytes + text.keys.nbytes + text.visible.nbytes
    print(f"{LONG} tokens, 9 heads: kept {kept / 2**20:.0f} MB; the largest memory", end=" ")
    print(f"{levels[0]:.0f} MB, with the block {levels[1]:.0f}, with statistics {levels[2]:.0f}")
    print(f"matrices of attention would be {4 * 9 * LONG**2 / 2**20:.0f} MB")


def whole(folder: Path, gguf: str | None, text: Path) -> None:
    options = {"gguf_file": gguf} if gguf else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, **options).eval()
    ids = tokenizer(text.read_text(encoding="utf-8")[:20_000], return_tensors="pt")["input_ids"][0]
    batch = ids[: PIECES * PIECE].reshape(PIECES, PIECE)
    start, clock = time.process_time(), time.perf_counter()
    with torch.no_grad(), capture(model) as recording:
        model(batch, use_cache=False)
    middle = time.process_time()
    found = audit(recording)
    end = time.process_time()
    fits = [fit for head in found.heads for fit in head.fits]
    print(f"{len(found.heads)} heads, {sum(fit.status == 'optimal' for fit in fits)} of", end=" ")
    print(f"{len(fits)} programmes optimal: capture {middle - start:.1f} s, audit", end=" ")
    print(f"{end - middle:.1f} s, by the clock {time.perf_counter() - clock:.1f} s together")


def band(copies: int = 5) -> None:
    """As ``tests/probe/test_planted.py`` does with 200 heads."""
    model, _, batch = demo_model(tokens=200)
    inside = []
    for copy in range(copies):
        with torch.no_grad(), capture(model) as recording:
            model(**batch)
        generator = torch.Generator().manual_seed(copy)
        for layer in recording.layers.values():
            for text in layer.texts:
                for head in text.queries:
                    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
                    head.copy_(4.0 * head @ turn)
        for each in audit(recording, ["fro"], ["random"], draws=5, seed=copy).heads:
            inside += [fit.interval()[0] < 0 < fit.interval()[1] for fit in each.fits]
    print(f"{sum(inside)} of {len(inside)} heads are inside: {sum(inside) / len(inside):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("what", choices=["capture", "long", "audit", "band"])
    parser.add_argument("folder", type=Path, nargs="?", help="of a model that transformers reads")
    parser.add_argument("--gguf", help="file of quantised weights inside the folder")
    parser.add_argument("--text", type=Path, help="what the audit reads")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if given.what == "audit":
        if given.folder is None or given.text is None:
            parser.error("audit needs the folder of a model, and --text")
        whole(given.folder, given.gguf, given.text)
    else:
        {"capture": captured, "long": long, "band": band}[given.what]()


if __name__ == "__main__":
    main()
