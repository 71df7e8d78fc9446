"""The page of bags: what the model says is on it, whatever the instances are, and nothing of it can
run.
"""

import re

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline

from attsvm.base.errors import InputError
from attsvm.datasets import planted_witnesses
from attsvm.report.bags_page import write_bags
from attsvm.sklearn import AttentionSVC, BagFeatures, WitnessSVC

NAMES = np.array(["no <i>witness</i>", "witness"])


@pytest.fixture(scope="module")
def witnesses():
    return planted_witnesses("linear", 40, 6, seed=2, d=4)


@pytest.fixture(scope="module")
def labels(witnesses):
    return NAMES[(witnesses.labels > 0).astype(int)]


@pytest.fixture(scope="module")
def model(witnesses, labels):
    return WitnessSVC(reject=2.0).fit(witnesses, labels)


@pytest.fixture(scope="module")
def explained(model, witnesses, labels):
    return model.explain(witnesses, labels)


def page(path, *args, **how):
    return write_bags(path / "bags.html", *args, **how).read_text(encoding="utf-8")


def test_the_numbers_on_the_page_are_the_models(tmp_path, model, explained, witnesses, labels):
    text = page(tmp_path, model, witnesses, labels, explained=explained)
    right = int((model.predict(witnesses) == labels).sum())
    found = model.evidence(witnesses)
    assert f"{right} of 40 bags are classified rightly" in text
    assert text.count("<dt>Sufficiency</dt>") == 1
    rejected = int(found.rejected.sum())
    assert f'<dt>Rejected</dt><dd class="value">{rejected}</dd>' in text
    assert "Rejected <span" in text if rejected else "Rejected <span" not in text
    support = len(explained.support)
    assert text.count('data-name="multiplier"') == min(support, 20) > 0
    assert f"programme of the selections (Frobenius norm) is {explained.solution.status}" in text
    steps = model.convex_steps_
    assert f"{len(steps)} of {len(steps)} convex steps" in text
    assert "no &lt;i&gt;witness&lt;/i&gt;" in text
    assert "<i>" not in text


def test_without_the_training_bags_there_are_no_support_instances(
    tmp_path, model, witnesses, labels
):
    text = page(tmp_path, model, witnesses.take(range(6)), labels[:6])
    assert "Support instances" not in text
    assert "6 bags" in text


def test_texts_are_escaped_and_the_selected_one_is_marked(tmp_path, model, witnesses, labels):
    texts = [f"<script>alert({i})</script> \x1b[31m" for i in range(len(witnesses.rows))]
    text = page(tmp_path, model, witnesses, labels, instances=texts, names=[*"ab" * 20])
    assert "<script" not in text
    assert "\x1b" not in text
    marked = [int(k) for k in re.findall(r"<mark[^>]*>&lt;script&gt;alert\((\d+)\)", text)]
    chosen = witnesses.offsets[:-1] + model.select(witnesses)
    assert marked
    assert set(marked) <= set(chosen)
    assert "Content-Security-Policy" in text


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (5, 7, 3)])
def test_images_are_drawn(tmp_path, model, witnesses, labels, shape):
    images = np.random.default_rng(0).integers(256, size=(len(witnesses.rows), *shape))
    text = page(tmp_path, model, witnesses.take([0, 1]), labels[:2], instances=images)
    assert text.count('src="data:image/png;base64,') == 24  # two groups of two bags of six
    assert text.count(", selected") == 4


def test_a_pipeline_and_three_classes(tmp_path):
    bags = planted_witnesses("linear", 60, 4, seed=3, d=5)
    three = np.arange(60) // 2 % 2 + (bags.labels > 0)
    model = make_pipeline(BagFeatures(PCA(4)), AttentionSVC(penalty=0.01)).fit(bags, three)
    text = page(tmp_path, model, bags, three)
    right = int((model.predict(bags) == three).sum())
    assert f"{right} of 60 bags are classified rightly" in text


def test_sequences_keep_their_own_queries(tmp_path, witnesses):
    data = witnesses.data(witnesses.labels)  # queried by their first instance, not by their mean
    model = AttentionSVC(penalty=0.01).fit(data)
    right = int((model.predict(data) == data.labels).sum())
    assert f"{right} of 40 bags are classified rightly" in page(tmp_path, model, data)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"instances": ["one"]}, "give one for each row"),
        ({"instances": np.ones((240, 3))}, "give texts, or images"),
        ({"names": ["one"]}, "1 names for 40 bags"),
    ],
)
def test_pictures_and_names_that_do_not_fit_are_one_sentence(
    tmp_path, model, witnesses, labels, how, sentence
):
    with pytest.raises(InputError, match=sentence):
        page(tmp_path, model, witnesses, labels, **how)
    assert not list(tmp_path.iterdir())


def test_a_function_loads_the_few_instances_that_are_shown(tmp_path, model, witnesses, labels):
    loaded = []

    def patch(bag, t):
        loaded.append((bag, t))
        return np.full((2, 2, 3), 40.0 * t)

    text = page(tmp_path, model, witnesses, labels, instances=patch)
    assert text.count("data:image/png;base64,") == len(loaded) - 1  # the first tells their kind
    assert len(loaded) < len(witnesses.rows)
    chosen = set(enumerate(model.select(witnesses).tolist()))
    assert {bag for bag, _ in loaded} <= {bag for bag, t in loaded if (bag, t) in chosen} | {0}
    with pytest.raises(InputError, match="one or three"):
        page(tmp_path, model, witnesses, labels, instances=lambda bag, t: np.ones(5))
    text = page(tmp_path, model, witnesses, labels, instances=lambda bag, t: f"word{bag}-{t}")
    assert "word" in text
