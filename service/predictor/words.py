"""The lexical voter: keys whose texts share rare words with the query vote, in addition to the nearest keys.

    score = (1 - w) p + w p_words,    p_words = softmax(3 ln s) [lambda Y; (1 - lambda) I]

p is the score of the vectors (`service.predictor.scoring`). s are the similarities by words of the 50 keys that are
most similar by words, so the weight of such a key is proportional to s^3, and to its count. p_words uses the same
lambda, and the same votes of each key. w is the option `word_weight`. If no key shares a word with the query, the score
is p.
"""

from __future__ import annotations

from collections.abc import Sequence

from recollect.service.bundle.values import Values
from recollect.service.lexical.index import LexicalIndex, word_logits
from recollect.service.predictor.scoring import WeightedKeys, weigh_logits
from recollect.service.predictor.searcher import Neighbours, join_parts

# Number of keys that vote by words. On library titles, 50 keys were as good as 200.
TOP_WORDS = 50


class WordVoter:
    """Answers queries by words alone.

    Attributes:
        index: The word indexes.
    """

    def __init__(self, index: LexicalIndex, values: Values) -> None:
        self.index, self._values = index, values

    def search(self, queries: Sequence[str], lambda_: float, top: int = TOP_WORDS) -> Neighbours:
        """The keys that are most similar by words, numbered as in the memory."""
        return self.index.search(queries, top, lambda_)

    def search_each(self, queries: Sequence[str]) -> tuple[Neighbours, Neighbours]:
        """The instances, and the labels, that are most similar by words."""
        return self.index.search_each(queries, TOP_WORDS)

    def weigh(self, found: tuple[Neighbours, Neighbours], lambda_: float) -> WeightedKeys:
        """The keys that are most similar by words, from the result of `search_each`, and their weights."""
        joined = join_parts(*found, len(self.index.instances), TOP_WORDS, lambda_)
        return weigh_words(joined, self._values)


def weigh_words(found: Neighbours, values: Values) -> WeightedKeys:
    """The weights of the first keys that are most similar by words: `TOP_WORDS` of them for each query."""
    found = found.first(TOP_WORDS)
    return weigh_logits(found.keys, word_logits(found.similarities), values)
