"""The tokenizer of an encoder, which must read every text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from recollect.core.errors import BundleError, RecollectError, opening

# Words that hardly any vocabulary has: a long one, each printable character of ASCII, and characters of other scripts.
_RARE_WORDS = " ".join(["xq" * 200, *map(chr, range(33, 127)), *"éЖب中ꙮ★𒀀🪿"])

# Number of characters that are read first for each token that is kept.
_CHARACTERS_PER_TOKEN = 16


def open_tokenizer(path: Path, max_length: int) -> Tokenizer:
    """Open a tokenizer that truncates texts after `max_length` tokens."""
    with opening(path):
        tokenizer = Tokenizer.from_file(str(path))
    check_reads_every_text(tokenizer, str(path), BundleError)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def check_reads_every_text(tokenizer: Tokenizer, where: str, error: type[RecollectError]) -> None:
    """Check that a tokenizer has its token for unknown words, if it needs one."""
    try:
        tokenizer.encode(_RARE_WORDS)
    except Exception as failure:  # tokenizers raises plain Exception
        raise error(
            f"{where}: expected a tokenizer with its token for unknown words, found: {failure}; add the token to the "
            "vocabulary, or choose another encoder"
        ) from None


def encode_beginnings(tokenizer: Tokenizer, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
    """Encode texts with a tokenizer that truncates, and read a long text only as far as its kept tokens need.

    A tokenizer reads a whole text before it truncates. Here it reads a part first. The last tokens of a part can differ
    from those of the whole text, so a part must have twice as many tokens as are kept. Otherwise, the tokenizer reads
    the whole text.
    """
    assert tokenizer.truncation is not None
    most = _CHARACTERS_PER_TOKEN * int(tokenizer.truncation["max_length"])
    encodings = tokenizer.encode_batch_fast([text[:most] for text in texts], add_special_tokens=add_special_tokens)
    rows = [row for row, text in enumerate(texts) if len(text) > most and len(encodings[row].overflowing) < 2]
    whole = tokenizer.encode_batch_fast([texts[row] for row in rows], add_special_tokens=add_special_tokens)
    for row, encoding in zip(rows, whole, strict=True):
        encodings[row] = encoding
    return encodings
