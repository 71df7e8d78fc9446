"""Words that belong to a class: chosen for it more often than chance chooses them, in texts that
have them more often than others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.stats import binom, hypergeom

from attsvm.datasets.attention_data import FloatArray, IntArray


def class_words(
    texts: Sequence[Sequence[str]],
    chosen: Sequence[str],
    classes: IntArray,
    level: float = 0.05,
) -> dict[int, list[str]]:
    r"""The words that belong to each class, those chosen most often first.

    A word that is chosen in :math:`k` of the :math:`n` texts of a class belongs to it when both of
    these are so:

    * It is chosen more often than at random. A random word of text :math:`i` is this one with
      probability :math:`p_i`, its share of the text, so chance chooses it :math:`\mu=\sum_i p_i`
      times on average, and :math:`k` times or more with a probability of at most
      :math:`P(\mathrm{Bin}(n,\mu/n)\ge k)` where :math:`k\ge\mu+1` (Hoeffding 1956, theorem 5).
    * It stands in more of the texts of the class than of all others, by Fisher's exact test.

    Each probability has to be below ``level`` divided by the number of words that are chosen for
    the class. So *the* and *a*, which stand in the texts of all classes alike, belong to none, even
    if attention turns to them where nothing else is said.

    Args:
        texts: the words of each text, a word as often as it can be chosen.
        chosen: ``(n,)``: the chosen word of each text; empty where none is.
        classes: ``(n,)``: the class that the chosen word speaks for.
        level: of both tests.

    Returns:
        a list of words for each class that a chosen word speaks for.

    Example:
        >>> import numpy as np
        >>> from attsvm.pipeline.class_words import class_words
        >>> texts = [["the", "film", "was", ["dull", "fine"][k % 2]] for k in range(40)]
        >>> class_words(texts, [text[3] for text in texts], np.arange(40) % 2)
        {0: ['dull'], 1: ['fine']}
        >>> class_words(texts, [text[0] for text in texts], np.arange(40) % 2)
        {0: [], 1: []}
    """
    rows = [i for i, word in enumerate(chosen) if word]
    candidates = {word: k for k, word in enumerate(dict.fromkeys(chosen[i] for i in rows))}
    groups = np.unique(np.asarray(classes)[rows])
    position = {int(group): g for g, group in enumerate(groups)}
    shape = (len(groups), len(candidates))
    times, expected, present = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    sizes = np.zeros(len(groups))
    for i in rows:
        g = position[int(classes[i])]
        sizes[g] += 1
        times[g, candidates[chosen[i]]] += 1
        for word, count in Counter(texts[i]).items():
            if (k := candidates.get(word)) is not None:
                expected[g, k] += count / len(texts[i])
                present[g, k] += 1
    names = list(candidates)
    return {
        int(group): [
            names[k]
            for k in sorted(np.flatnonzero(belongs), key=lambda k: (-times[g, k], names[k]))
        ]
        for g, (group, belongs) in enumerate(
            zip(groups, _belong(times, expected, present, sizes, level), strict=True)
        )
    }


def _belong(
    times: FloatArray, expected: FloatArray, present: FloatArray, sizes: FloatArray, level: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """``(classes, words)``: which word belongs to which class; see :func:`class_words`.

    Args:
        times: how often a word is chosen for a class.
        expected: how often chance would choose it.
        present: in how many texts of the class it stands.
        sizes: ``(classes,)``: texts of a class.
        level: of both tests.
    """
    n, in_all = sizes[:, None], present.sum(axis=0)
    strict = level / np.maximum((times > 0).sum(axis=1), 1)[:, None]
    by_chance = binom.sf(times - 1, n, np.minimum(expected / n, 1.0))
    in_class = hypergeom.sf(present - 1, sizes.sum(), in_all, n)
    return (times >= expected + 1) & (by_chance < strict) & (in_class < strict)
