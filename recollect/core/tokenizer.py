"""The tokenizer of an encoder, which must read every text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from recollect.core.errors import BundleError, RecollectError, opening

# Words that hardly any vocabulary has: a long one, each printable character of ASCII, and characters of other scripts.
_RARE_WORDS = " ".join(["xq" * 200, *map(chr, range(33, 127)), *"éЖب中ꙮ★𒀀🪿"])


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
