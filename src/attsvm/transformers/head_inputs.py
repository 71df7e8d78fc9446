r"""Keys and queries as the weights of a head see them, and its max-margin programme on them.

A head without rotary positions has weights :math:`W=sW_K^\top W_Q` on the inputs of its layer: its
logits are :math:`x_t^\top Wz` with :math:`z=(x-\bar x,1)`, the centred input of the query and a
constant that carries bias and mean. In other heads keys and queries themselves are the inputs and
:math:`W=sI`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import PairMargins, pair_margins
from attsvm.transformers.null_weights import reflection
from attsvm.transformers.recording import Layer
from attsvm.transformers.selections import Classes, token_classes


class HeadInputs:
    """Keys and queries of one head as its weights see them.

    Args:
        layer: of the head.
        h: index of the head in the layer's recorded heads.
        center: subtract the mean input from queries; its share moves to the constant.
        classes: equivalent tokens.

    Attributes:
        layer, h: the arguments.
        keys: per text ``(T, width)``.
        queries: per text ``(q, width + 1)``; ``(q, d)`` where keys and queries are the inputs.
        classes: per text ``(T,)`` integers, equal for equivalent tokens.
        text: ``(n,)``, the number in the layer of the text of each query, all texts end to end.
        row: ``(n,)``, the number of each query in its text.
    """

    def __init__(
        self, layer: Layer, h: int, center: bool = True, classes: Classes | None = None
    ) -> None:
        self.layer, self.h = layer, h
        texts = layer.texts
        self.classes = [token_classes(classes, t.text, t.keys.shape[1]) for t in texts]
        self.text = np.concatenate([np.full(len(t.positions), i) for i, t in enumerate(texts)])
        self.row = np.concatenate([np.arange(len(t.positions)) for t in texts])
        # without linear maps the weights are s I on keys and queries themselves
        P = layer.projection
        if P is None:
            g = h * len(texts[0].keys) // layer.heads
            self.keys = [t.keys[g].double().numpy() for t in texts]
            self.queries = [t.queries[h].double().numpy() for t in texts]
        else:
            query_inputs = [inputs.double().numpy() for inputs in P.query_inputs]
            # the mean query says nothing about any one of them; its share is the constant's
            mean: FloatArray = np.concatenate(query_inputs).mean(axis=0)
            self._mean = mean if center else np.zeros_like(mean)
            self.keys = [inputs.double().numpy() for inputs in P.key_inputs]
            self.queries = [
                np.concatenate([z - self._mean, np.ones((len(z), 1))], axis=1) for z in query_inputs
            ]

    def weights(self, h: int | None = None) -> FloatArray:
        """The head's own weights ``(width, width + 1)``, or those of another head of its layer;
        ``s I`` where keys and queries are the inputs.
        """
        K, Q = self._factors(self.h if h is None else h)
        return K.T @ Q

    def reflected(self, rng: np.random.Generator) -> FloatArray:
        """The own weights between random reflections of the inputs, see
        :func:`~attsvm.transformers.null_weights.reflection`: the same of keys and queries, unless
        these are another text's.
        """
        P = self.layer.projection
        assert P is not None
        # keys and queries of one text are the same inputs, so they are reflected alike
        left = right = reflection(np.concatenate(self.keys), rng)
        if self.layer.cross:
            right = reflection(torch.cat(P.query_inputs).double().numpy(), rng)
        W = self.weights()
        return np.concatenate([left @ W[:, :-1] @ right, left @ W[:, -1:]], axis=1)

    @cached_property
    def singular(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Singular vectors and values of the own weights, none of them zero: ``U, s, Vt``."""
        # the factors are thin: two QRs and a small SVD instead of a large one
        K, Q = self._factors(self.h)
        left, upper = np.linalg.qr(K.T)
        right, lower = np.linalg.qr(Q.T)
        U, s, Vt = np.linalg.svd(upper @ lower.T, full_matrices=False)
        is_nonzero = s > 1e-10 * s[0]
        return left @ U[:, is_nonzero], s[is_nonzero], Vt[is_nonzero] @ right.T

    def logits(self, W: FloatArray, right: FloatArray | None = None) -> list[FloatArray]:
        """Logits of the weights ``W``, or of those of low rank ``W @ right``; per text ``(q, T)``,
        minus infinity on hidden keys.
        """
        # a factor at a time: weights of low rank are never multiplied out
        return [
            np.where(
                text.visible,
                (queries if right is None else queries @ right.T) @ (keys @ W).T,
                -np.inf,
            )
            for text, queries, keys in zip(self.layer.texts, self.queries, self.keys, strict=True)
        ]

    def selected(self, W: FloatArray, members: IntArray) -> IntArray:
        """The keys that these weights select at some queries, ascending numbers ``(m,)``."""
        selected = np.empty(len(members), dtype=np.int64)
        text, row = self.text[members], self.row[members]
        for i in np.unique(text):
            rows = row[text == i]
            logits = (self.queries[i][rows] @ W.T) @ self.keys[i].T
            visible = self.layer.texts[i].visible[rows]
            selected[text == i] = np.where(visible, logits, -np.inf).argmax(axis=1)
        return selected

    def programme(self, members: IntArray, selected: IntArray) -> PairMargins:
        """The max-margin programme of some queries.

        Args:
            members: their numbers, ascending.
            selected: ``(n,)``, what every query selects.
        """
        text, row = self.text[members], self.row[members]
        # only texts with members, in their order, so that rows can be traced back to them
        used = np.unique(text)
        rows = [row[text == i] for i in used]
        texts = [self.layer.texts[i] for i in used]
        return pair_margins(
            [self.keys[i] for i in used],
            [self.queries[i][r] for i, r in zip(used, rows, strict=True)],
            [selected[members[text == i]] for i in used],
            positions=[
                np.zeros_like(r) if self.layer.cross else t.positions[r]
                for t, r in zip(texts, rows, strict=True)
            ],
            visible=[t.visible[r] for t, r in zip(texts, rows, strict=True)],
            classes=[self.classes[i] for i in used],
        )

    def equivalent(self, queries: IntArray, left: IntArray, right: IntArray) -> BoolArray:
        """Whether the keys at two positions of each of these queries' texts are of one class,
        ``(m,)``; false where a text has no such position.
        """
        lengths = np.array([len(classes) for classes in self.classes])
        text = self.text[queries]
        # classes of all texts end to end, and where each text begins
        flat, first = np.concatenate(self.classes), (np.cumsum(lengths) - lengths)[text]
        exists = (np.minimum(left, right) >= 0) & (np.maximum(left, right) < lengths[text])
        left_class = flat[np.where(exists, first + left, 0)]
        right_class = flat[np.where(exists, first + right, 0)]
        return exists & (left_class == right_class)

    def _factors(self, h: int) -> tuple[FloatArray, FloatArray]:
        """Two matrices of the head's size whose product ``K.T @ Q`` are its weights."""
        # logits are s k.q: the scale goes to the keys
        text, P = self.layer.texts[0], self.layer.projection
        d = text.queries.shape[2]
        if P is None:
            return text.scale * np.eye(d), np.eye(d)
        rows = slice(h * d, (h + 1) * d)
        # a column for the constant: the bias, and the share of the mean that was subtracted
        W_K, W_Q, b_Q = (matrix[rows].double().numpy() for matrix in (P.W_K, P.W_Q, P.b_Q))
        shift = b_Q + W_Q @ self._mean
        return text.scale * W_K, np.concatenate([W_Q, shift[:, None]], axis=1)
