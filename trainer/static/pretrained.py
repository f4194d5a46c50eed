"""Makes an untrained static encoder from a pretrained encoder and the texts of a dataset.

The vector of a token is the pretrained encoder's vector of a text with this token alone (model2vec, Tulkens and van
Dongen, 2024). Principal component analysis removes the mean and the excess of the first directions. The weight of a
token falls with its frequency in the dataset (SIF, Arora et al., ICLR 2017):

    w_t = a / (a + p(t))
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.trainer.encoding.encoder import Encoder, EncoderConfig, UnitVectorModel
from recollect.trainer.encoding.pooling import Pooler
from recollect.trainer.encoding.static_model import StaticModel
from recollect.trainer.encoding.tokens import Texts, TokenTable

# The constant a of SIF.
_RARE = 1e-4
# Weight of the special tokens around each text. It is small, but a text without other tokens needs a vector too.
_SPECIAL_WEIGHT = 1e-3
# Number of tokens that the pretrained encoder encodes at once.
_BATCH_TOKENS = 1_024


def make_static(source: Encoder, name: str, max_length: int, label_max_length: int, texts: Iterable[Texts]) -> Encoder:
    """Make a static encoder with the tokenizer of a pretrained encoder. The tokens of the texts are counted."""
    vectors = _flatten_spectrum(_encode_tokens(source))
    special = source.tokenizer.encode("").ids
    weights = _weigh_tokens(_count_tokens(source, texts, max_length, len(vectors)))
    weights[special] = _SPECIAL_WEIGHT
    config = EncoderConfig(name, "mean", max_length, label_max_length, held_out=source.config.held_out)
    model = UnitVectorModel(StaticModel.of(vectors, weights, max_length), Pooler(config.pooling))
    return Encoder(config, model, source.tokenizer, source.pad_id, source.device)


def _encode_tokens(source: Encoder) -> Float[Tensor, "token dim"]:
    """The pretrained encoder's vector of each token, alone between the special tokens."""
    before, after = _special_tokens(source)
    count = int(source.model.transformer.config.vocab_size)
    vectors = []
    for start in range(0, count, _BATCH_TOKENS):
        tokens = torch.arange(start, min(start + _BATCH_TOKENS, count))
        rows = len(tokens)
        ids = torch.cat([before.expand(rows, -1), tokens[:, None], after.expand(rows, -1)], dim=1).to(source.device)
        with torch.inference_mode():
            vectors.append(source.model(ids, torch.ones_like(ids)).cpu())
    return torch.cat(vectors)


def _special_tokens(source: Encoder) -> tuple[Int[Tensor, "1 before"], Int[Tensor, "1 after"]]:
    """The ids that the tokenizer adds before and after a text."""
    encoding = source.tokenizer.encode("a")
    is_text = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
    ids = torch.tensor(encoding.ids)[None]
    return ids[:, : is_text[0]], ids[:, is_text[-1] + 1 :]


def _flatten_spectrum(vectors: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
    """Centre the vectors, divide each principal component by the root of its deviation, and set the mean length to 1.

    The first components of token vectors state how common a token is, more than its meaning.
    """
    centred = vectors - vectors.mean(dim=0)
    _, deviations, directions = torch.linalg.svd(centred, full_matrices=False)
    scaled = centred @ directions.T / deviations.clamp_min(deviations[0] * 1e-6).sqrt()
    flattened: Tensor = scaled / scaled.norm(dim=1).mean()
    return flattened


def _count_tokens(source: Encoder, texts: Iterable[Texts], max_length: int, tokens: int) -> Int[np.ndarray, " token"]:
    counts = np.zeros(tokens, dtype=np.int64)
    for part in texts:
        counts += np.bincount(TokenTable.of(part, source.tokenizer, max_length, source.pad_id).ids, minlength=tokens)
    return counts


def _weigh_tokens(counts: Int[np.ndarray, " token"]) -> Float[Tensor, " token"]:
    """SIF weights. A token that the dataset lacks gets the weight of half an occurrence."""
    frequencies = (counts + 0.5) / max(1, counts.sum())
    return torch.from_numpy(_RARE / (_RARE + frequencies)).float()
