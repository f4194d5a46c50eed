"""Finds label texts that the encoder reads only in part, or as another label's text, before a long training."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from tokenizers import Encoding

from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.pretrained import PACKAGED
from recollect.trainer.shorthands import MULTILINGUAL

_CHUNK_TEXTS = 8_192
# Names of the token that stands for characters outside a vocabulary.
_UNKNOWN = ("[UNK]", "<unk>")


def describe_unclear_labels(encoder: Encoder, texts: Iterable[str]) -> Iterator[str]:
    """Yield one line for each kind of problem: the number of label texts that have it, and an example.

    Args:
        encoder: The encoder of the label keys, whose tokenizer reads each text once.
    """
    if encoder.served is not None:  # only the server knows its tokens
        return
    length, prompt = encoder.config.label_max_length, encoder.config.label_prompt
    unknown = {encoder.tokenizer.token_to_id(name) for name in _UNKNOWN} - {None}
    is_english = encoder.config.name.rpartition(":")[2] == PACKAGED  # also `static:minilm`
    encoder.tokenizer.enable_truncation(length)
    special = encoder.tokenizer.num_special_tokens_to_add(is_pair=False)
    seen, counts, examples = set[int](), dict[str, int](), dict[str, str]()
    total, rest, tokens, lost = 0, iter(texts), 0, 0
    while chunk := list(itertools.islice(rest, _CHUNK_TEXTS)):
        encodings = encoder.tokenizer.encode_batch_fast([prompt + text for text in chunk])
        for text, encoding in zip(chunk, encodings, strict=True):
            key = hash(tuple(encoding.ids))  # 8 bytes a label
            if cut := count_cut_tokens(encoding, special):
                tokens, lost = tokens + len(encoding) + cut, lost + cut
            problems = {
                f"are cut at --label-max-length {length}": cut > 0,
                "have characters that the tokenizer cannot read ([UNK])": unknown.intersection(encoding.ids),
                "have the tokens of an earlier label, so their keys are equal": key in seen,
                f"are not in Latin script, and {PACKAGED} is an English model, so choose another --encoder, such as "
                f"{MULTILINGUAL}": is_english and not _is_latin(text),
            }
            for problem in (problem for problem, found in problems.items() if found):
                counts[problem] = counts.get(problem, 0) + 1
                examples.setdefault(problem, text)
            seen.add(key)
        total += len(chunk)
    for problem, count in counts.items():
        share = f" ({lost / tokens:.0%} of their tokens)" if problem.startswith("are cut") else ""
        yield f"labels: {count:,} of {total:,} texts {problem}{share}; for example {examples[problem][:60]!r}"


def count_cut_tokens(encoding: Encoding, special: int) -> int:
    """Number of tokens of a text that truncation has cut. Each part after the first has special tokens, too."""
    return sum(len(part) - special for part in encoding.overflowing)


def _is_latin(text: str) -> bool:
    """Whether at least half of the letters are Latin ones; true for a text without letters."""
    letters = [each for each in text if each.isalpha()]
    latin = sum(each <= "\u024f" or "\u1e00" <= each <= "\u1eff" for each in letters)
    return 2 * latin >= len(letters)
