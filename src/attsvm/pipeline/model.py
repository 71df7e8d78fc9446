"""The model of a run: an estimator that is fitted to every sequence that is not held out, and its
explanation, one class against the others.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets import Dataset, Encoded
from attsvm.datasets.attention_data import AttentionData, BoolArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.norms import Norm, as_norm
from attsvm.pipeline.predictions import wordless
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn import AttentionSVC, ChanceWarning, Explanation, Limits, WitnessSVC
from attsvm.sklearn.explaining import check_explained
from attsvm.sklearn.preparation import check_selectable, small_classes, split_by_class
from attsvm.sklearn.stage import Progress, StageOptions


@dataclass(frozen=True)
class TheoryOptions:
    """How much of the training part the theory is about.

    Attributes:
        numbers: most numbers in the padded tokens; a few copies of them are in memory, and the
            margin of more takes longer than its time.
    """

    numbers: int = 65_000_000


@dataclass(frozen=True, eq=False)
class RunData:
    """An encoded data set and what is done with its rows.

    Attributes:
        dataset: the labels and their names.
        encoded: the sequences.
        train: positions of the sequences that are fitted to.
        test: positions of those that are held out.
        positive: the class that the theory tells from the others.
        explained: positions of the training sequences that the theory is about.
    """

    dataset: Dataset
    encoded: Encoded
    train: IntArray
    test: IntArray
    positive: int
    explained: IntArray

    @property
    def labels(self) -> IntArray:
        """``(n,)`` positions among the classes."""
        return self.dataset.labels

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return self.dataset.class_names

    @property
    def token_kind(self) -> str:
        """The kind of the data, or ``sentences`` where these are the tokens of texts."""
        instances = self.dataset.provenance.get("instances")
        return "sentences" if instances == "sentences" else self.dataset.kind

    @cached_property
    def shares(self) -> list[float]:
        """Of the classes among the sequences that are fitted to."""
        counts = np.bincount(self.labels[self.train], minlength=len(self.classes))
        return list((counts / len(self.train)).tolist())

    @cached_property
    def wordless(self) -> BoolArray:
        """``(n,)``: texts without a known word, of which vectors say nothing."""
        return wordless(self.encoded)

    def answered(self, classes: IntArray, rows: IntArray | slice = slice(None)) -> IntArray:
        """``(..., n)`` classes that vectors say of the sequences at these positions, of texts
        without a known word the most frequent one.
        """
        return np.where(self.wordless[rows], int(np.argmax(self.shares)), classes)

    def bags(self, rows: IntArray) -> Bags:
        """The sequences at these positions with their labels."""
        return replace(self.encoded.bags.take(rows), labels=self.labels[rows])

    def theory_data(self) -> AttentionData:
        """The sequences of the theory, repeated tokens masked; +1 in the class that is told from
        the others. They are made anew at every call, because they take much memory.
        """
        signs = np.where(self.labels[self.explained] == self.positive, 1.0, -1.0)
        return self.encoded.take(self.explained).data(signs).without_duplicates()


def split_test(dataset: Dataset, settings: FitSettings) -> tuple[IntArray, IntArray]:
    """Rows to fit to and rows that are held out: as the data set says, else a share.

    Raises:
        InputError: a class with fewer than two sequences to fit to, or none to hold out.
    """
    noun = dataset.kind if dataset.kind in ("text", "image") else "sequence"
    if dataset.held is None:
        size, seed = settings.test_size, settings.seed
        return split_by_class(dataset.labels, size, seed, dataset.class_names, 2, noun)
    train = np.setdiff1d(np.arange(len(dataset)), dataset.held)
    counts = np.bincount(dataset.labels[train], minlength=len(dataset.class_names))
    small = small_classes(counts, dataset.class_names, 2, noun)
    if small:
        raise InputError(f"{small} to fit to; give at least two of each class")
    return train, dataset.held


def split_and_encode(
    dataset: Dataset, settings: FitSettings, options: TheoryOptions | None = None
) -> RunData:
    """The data of a run, split and encoded; whatever cannot be fitted is refused here.

    Raises:
        InputError: too few sequences of a class, or nothing to select in any of them.
    """
    options = options or TheoryOptions()
    train, test = split_test(dataset, settings)
    encoded = dataset.encode(train)
    lengths, d = encoded.bags.lengths[train], encoded.bags.d
    positive = dataset.positive
    if positive is None:
        counts = np.bincount(dataset.labels[train], minlength=len(dataset.class_names))
        positive = 1 if len(counts) == 2 else int(np.argmax(counts))
    order = np.random.default_rng([settings.seed, 5]).permutation(len(train))
    padded = np.arange(1, len(train) + 1) * np.maximum.accumulate(lengths[order]) * d
    many = max(int(np.searchsorted(padded, options.numbers, side="right")), 2)
    return RunData(dataset, encoded, train, test, positive, train[np.sort(order[:many])])


def limits_of(settings: FitSettings) -> Limits:
    """Limits of selection and margin."""
    return Limits(
        settings.selection_steps,
        settings.lr,
        settings.slack,
        settings.tol,
        settings.solve_seconds,
    )


def new_estimator(
    run: RunData,
    settings: FitSettings,
    progress: Progress | None,
    pooling: Literal["soft", "hard"] = "soft",
) -> AttentionSVC | WitnessSVC:
    """The classifier of the assumption, not fitted."""
    if settings.assumption == "standard":
        return WitnessSVC(
            class_weight=settings.class_weight,  # type: ignore[arg-type]
            random_state=settings.seed,
            progress=progress,
        )
    return AttentionSVC(
        query=run.encoded.query,
        pooling=pooling,
        class_weight=settings.class_weight,  # type: ignore[arg-type]
        random_state=settings.seed,
        progress=progress,
    )


def check_fit(run: RunData, settings: FitSettings) -> None:
    """Refuse, before the first step, what :func:`fitted` and :func:`explained` would refuse.

    Raises:
        InputError: nothing to select, numbers beyond float64, or a step that is no number.
    """
    new_estimator(run, settings, None).training_bags(run.bags(run.train))
    if settings.assumption == "standard":
        check_selectable(run.theory_data())
    else:
        check_explained(run.theory_data(), as_norm(settings.norm), limits_of(settings))


def fit_estimator(
    run: RunData, settings: FitSettings, progress: Progress | None
) -> tuple[AttentionSVC | WitnessSVC, bool]:
    """The estimator, fitted to the training part; and whether it is better than chance on sequences
    that were left out.
    """
    estimator = new_estimator(run, settings, progress)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ChanceWarning)
        estimator.fit(run.bags(run.train))
    return estimator, not any(issubclass(warning.category, ChanceWarning) for warning in caught)


def fit_chooser(
    run: RunData,
    estimator: AttentionSVC | WitnessSVC,
    settings: FitSettings,
    progress: Progress | None,
) -> AttentionSVC | WitnessSVC:
    """The classifier that decides by one token of each sequence, fitted to the training part: of
    witnesses the estimator itself, of attention another one, with hard pooling.
    """
    if isinstance(estimator, WitnessSVC):
        return estimator

    def renamed(stage: str, done: int, total: int) -> None:
        if progress is not None:
            progress("one token alone", done, total)

    chooser = new_estimator(run, settings, renamed, "hard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChanceWarning)  # the estimator's is reported
        chooser.fit(run.bags(run.train))
    return chooser


@dataclass(frozen=True, eq=False)
class RunModel:
    """The estimator of a run, and what explains it.

    Attributes:
        estimator: the predictor of all classes.
        chooser: the same that decides by one token; see :func:`fit_chooser`.
        beats_chance: whether it is better than chance on sequences that were left out.
        explanation: selections and margin of one class against the others.
        norm: the geometry of these.
    """

    estimator: AttentionSVC | WitnessSVC
    chooser: AttentionSVC | WitnessSVC
    beats_chance: bool
    explanation: Explanation
    norm: Norm


def explain_chooser(
    run: RunData,
    chooser: AttentionSVC | WitnessSVC,
    settings: FitSettings,
    options: StageOptions,
) -> Explanation:
    """Selections and margin of the class that the theory is about."""
    return chooser.explain(
        run.bags(run.explained),
        positive=run.positive,
        norm=settings.norm,
        limits=limits_of(settings),
        stage=options,
    )
