"""Token tables in files: rank 0 tokenises the texts, and all ranks of a host map the same table."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from recollect.service.files import save_array
from recollect.trainer.distributed import Ranks
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.tokens import Texts, TokenTable
from recollect.trainer.heads.adapter import Side


def share_tokens(folder: Path, encoder: Encoder, texts: Texts, max_length: int, side: Side, ranks: Ranks) -> TokenTable:
    """Tokenise texts. With several ranks, the table is mapped from files, which a host holds in memory once.

    Args:
        folder: Folder to write, which all ranks can read. It is replaced if it exists.
        encoder: The encoder whose tokenizer reads the texts.
        texts: The texts.
        max_length: Number of tokens to which each text is truncated.
        side: Whether the texts are queries or labels.
        ranks: The processes that need the table.
    """
    if ranks.size == 1:
        return encoder.tokenise(texts, max_length, side)
    if ranks.first:
        table = encoder.tokenise(texts, max_length, side)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_array(folder / "ids.npy", table.ids)
        save_array(folder / "starts.npy", table.starts)
    ranks.broadcast_object(None)  # the other ranks wait until the files are written
    empty = encoder.tokenise([], max_length, side)
    ids, starts = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("ids", "starts"))
    return dataclasses.replace(empty, ids=ids, starts=starts)
