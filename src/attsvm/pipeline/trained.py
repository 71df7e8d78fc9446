"""The model of ``attsvm fit``: attention and head trained together, then attention alone, then the
margin of its selections, with records of every step and checkpoints.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from attsvm.base.progress import reporter
from attsvm.base.store import Stages, fingerprint, versions
from attsvm.base.store.code import code_fingerprint
from attsvm.datasets.attention_data import AttentionData, given_away
from attsvm.norms import as_norm
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn import AttentionSVC, layers
from attsvm.sklearn.choosing import TrainingBags
from attsvm.sklearn.explaining import Limits, certify, check_explained, select
from attsvm.sklearn.joint_stage import train_jointly
from attsvm.sklearn.layers import Layer, PooledLayer
from attsvm.sklearn.preparation import root_mean_square, split
from attsvm.sklearn.stage import Progress, Watch


def limits_of(settings: FitSettings) -> Limits:
    """What selection and margin may take."""
    return Limits(
        settings.selection_steps,
        settings.lr,
        settings.slack,
        settings.tol,
        settings.solve_seconds,
    )


class Trained(AttentionSVC):
    """:class:`~attsvm.sklearn.AttentionSVC`, but trained as the settings of a fit say.

    Args:
        settings: what the user chose.
        checkpoint: folder in which unfinished stages are kept, so that the same call goes on after
            a kill and ends with the same bits; None to keep none.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: called with stage name, steps done, steps in all.

    Attributes:
        norm_: the geometry of selection and margin.
        unit_: root-mean-square norm of the tokens times that of the queries.
        train_indices_, validation_indices_: which sequences were trained on.
        weights_, baseline_, joint_trajectory_, best_step_: see
            :class:`attsvm.sklearn.joint_stage.Joint`; in the units of the data.
        selection_weights_, trajectory_, lr_: weights, records and step of the selection stage.
        solution_: the max-margin solution of the training sequences.
        hard_status_: the status of the hard margin; ``solution_`` is soft where it is infeasible.
    """

    def __init__(
        self,
        settings: FitSettings,
        *,
        checkpoint: Path | None = None,
        checkpoint_seconds: float = 5.0,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(random_state=settings.seed, progress=progress)
        self.settings = settings
        self.checkpoint = checkpoint
        self.checkpoint_seconds = checkpoint_seconds

    def check(self, data: AttentionData) -> TrainingBags:
        """Refuse, before the first step, what :meth:`learn` would refuse."""
        training = self.training_bags(data)
        self.norm_ = as_norm(self.settings.norm)
        check_explained(data, self.norm_, limits_of(self.settings))
        self.train_indices_, self.validation_indices_ = split(
            data.labels, self.settings.validation_size, self.settings.seed, "validation_size"
        )
        return training

    def learn(self, data: AttentionData) -> Trained:
        """Train on labelled sequences."""
        training, settings, limits = self.check(data), self.settings, limits_of(self.settings)
        stages = Stages(None, "")
        if self.checkpoint is not None:
            stages = Stages(Path(self.checkpoint), self._key(data))
        watch = Watch(stages, settings.records, self.checkpoint_seconds, reporter(self.progress))
        tokens, z = root_mean_square(training.bags.rows), root_mean_square(data.queries)
        self.unit_ = tokens * z
        scaled = AttentionData(
            given_away(data.tokens / tokens), data.labels, data.queries / z, data.mask
        )
        train, held = scaled.take(self.train_indices_), scaled.take(self.validation_indices_)
        joint = train_jointly(
            train, held, settings.joint_steps, settings.joint_lr, settings.head_lr, watch
        )
        pooled = joint.baseline
        self.weights_ = joint.weights.rescaled(tokens, z)
        self.joint_trajectory_, self.best_step_ = joint.trajectory, joint.best_step
        self.baseline_ = replace(pooled, coef=pooled.coef / tokens, C=pooled.C / tokens**2)
        self.convex_steps_, self.optimum_ = [], "none"
        values = self._reading(training.bags, data.queries).values
        self._describe(training, values, self.validation_indices_)
        hard, self.trajectory_, self.lr_ = select(train, joint.weights, self.norm_, limits, watch)
        self.selection_weights_ = hard.rescaled(tokens, z)
        trained = data.take(self.train_indices_)
        selected = layers.selected_tokens(trained, self.selection_weights_.W)
        self.solution_, self.hard_status_ = certify(
            trained, selected, self.norm_, limits, watch.progress
        )
        return self

    def _layer(self) -> Layer:
        W, head, intercept = self.weights_.W, self.weights_.head, self.weights_.intercept
        return PooledLayer(W[None], head[None, :, None], np.array([intercept]))

    def _key(self, data: AttentionData) -> str:
        digest = hashlib.sha256()
        for array in (data.tokens, data.labels, data.queries, data.mask):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).data)
        return fingerprint(
            {
                "data": digest.hexdigest(),
                "parameters": self.settings._asdict() | {"norm": self.norm_.name},
                "versions": versions(),
                "code": code_fingerprint(type(self)),
            }
        )
