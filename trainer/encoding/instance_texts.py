"""Finds instance texts that the encoder reads only in part, or not in its own language, before a long training."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from jaxtyping import Int
from tokenizers import Tokenizer

from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.label_texts import count_cut_tokens
from recollect.trainer.shorthands import MULTILINGUAL

# Number of texts that are read, evenly spaced: to find long ones, and to count the pieces of words.
_MOST_READ, _MOST_SPLIT = 50_000, 1_000
_CHUNK_TEXTS = 8_192
# Share of the texts that have equal beginnings, from which on a line says so.
_MANY_EQUAL = 0.01
# Pieces a word, from which on the texts are not in the language of the encoder. With minilm, English titles, abstracts
# and bills have 1.1 to 1.3, English names of labels 1.4, French titles 1.8, German ones 2.6, and Finnish ones 3.5.
_MANY_PIECES, _ENGLISH_PIECES = 1.7, 1.2
# A larger vocabulary is that of several languages. Finnish titles have 2.4 pieces a word with that of XLM-R.
_MULTILINGUAL_TOKENS = 100_000
_FEWEST_WORDS = 100
_WORD = re.compile(r"[^\W\d_]+")


def describe_instances(encoder: Encoder, texts: pa.LargeStringArray) -> Iterator[str]:
    """Yield one line for each kind of problem of the texts of instances. Of many texts, only some are read."""
    if encoder.served is not None:  # only the server knows its tokens
        return
    read = _spread(texts, _MOST_READ)
    yield from _describe_long(encoder, read, "" if len(read) == len(texts) else f" (of {len(texts):,})")
    pieces = _pieces_a_word(encoder.tokenizer, _spread(texts, _MOST_SPLIT).to_pylist())
    if pieces >= _MANY_PIECES and encoder.tokenizer.get_vocab_size() < _MULTILINGUAL_TOKENS:
        yield (
            f"instances: the texts break into {pieces:.1f} pieces a word (English: {_ENGLISH_PIECES}): this "
            f"encoder was not made for their language; try --encoder {MULTILINGUAL}"
        )


def _describe_long(encoder: Encoder, texts: pa.LargeStringArray, out_of: str) -> Iterator[str]:
    length, prompt = encoder.config.max_length, encoder.config.query_prompt
    special = encoder.tokenizer.num_special_tokens_to_add(is_pair=False)
    encoder.tokenizer.enable_truncation(length)
    # A token has at least one byte, so most titles need no tokenizer.
    room = length - special - len(prompt.encode())
    long = texts.filter(pa.array(_sizes(texts) > room))
    total, cut, beginnings = 0, 0, list[tuple[int, int]]()
    for start in range(0, len(long), _CHUNK_TEXTS):
        chunk = long[start : start + _CHUNK_TEXTS].to_pylist()
        encodings = encoder.tokenizer.encode_batch_fast([prompt + text for text in chunk])
        for text, encoding in zip(chunk, encodings, strict=True):
            if lost := count_cut_tokens(encoding, special):
                cut += lost
                total += lost + len(encoding)
                beginnings.append((hash(tuple(encoding.ids)), hash(text)))
    if not beginnings:
        return
    yield (
        f"instances: {len(beginnings):,} of {len(texts):,} texts{out_of} are longer than --max-length {length}: "
        f"{cut / total:.0%} of their tokens are cut"
    )
    if (equal := _count_equal(np.array(beginnings))) > max(1, _MANY_EQUAL * len(texts)):
        yield (
            f"instances: {equal:,} different texts have equal beginnings of {length} tokens, so their keys are equal; "
            "raise --max-length"
        )


def _count_equal(beginnings: Int[np.ndarray, "text 2"]) -> int:
    """Number of different texts whose beginning another text has. A row is the hash of a beginning and of its text."""
    different = np.unique(beginnings, axis=0)
    _, counts = np.unique(different[:, 0], return_counts=True)
    return int(counts[counts > 1].sum())


def _pieces_a_word(tokenizer: Tokenizer, texts: list[str]) -> float:
    """Mean number of tokens of a word of letters; 0 for too few words. Numbers break into many pieces everywhere."""
    words = [_WORD.findall(text) for text in texts]
    if (count := sum(map(len, words))) < _FEWEST_WORDS:
        return 0.0
    tokenizer.no_truncation()
    encodings = tokenizer.encode_batch_fast([" ".join(each) for each in words], add_special_tokens=False)
    return sum(map(len, encodings)) / count


def _spread(texts: pa.LargeStringArray, most: int) -> pa.LargeStringArray:
    """All texts, or so many of them, evenly spaced."""
    if len(texts) <= most:
        return texts
    return texts.take(pa.array(np.linspace(0, len(texts) - 1, most, dtype=np.int64)))


def _sizes(texts: pa.LargeStringArray) -> Int[np.ndarray, " text"]:
    """The size of each text in bytes."""
    sizes: np.ndarray = np.asarray(pa.compute.binary_length(texts))
    return sizes
