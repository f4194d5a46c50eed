"""Train a cross-encoder, and export it in int8.

It starts from a BERT encoder. Its lessons are texts with their best candidates by the ranker: true ones, and wrong ones
that the ranker confuses with them. The loss is logistic, so the output is a logit. `core/reranker/cross_encoder.py`
says how it reads a text with its candidates.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from recollect.core.bundle.files import CROSS_ENCODER, CROSS_TOKENIZER
from recollect.core.encoder import open_session
from recollect.core.reranker.cross_encoder import INPUTS, OUTPUT, CrossEncoder, Joined, PairTokenizer
from recollect.core.reranker.scorer import Pair
from recollect.core.system.console import print_status, progress_bar
from recollect.index_builder.errors import BuildError
from recollect.index_builder.onnx_export import quantise_until, quiet
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.randomness import Purpose, generator

# Maximum number of tokens of a text and of a label.
LENGTHS = (64, 16)
# Tokens before and after a text, and after a label.
_ENDS = 3
# Number of texts in a step, and maximum number of passes over all texts: more passes would learn them by heart.
_STEP_TEXTS, _MOST_PASSES = 8, 5
# Learning rates of the transformer and of the new head. They rise over the first share of the time, and fall to the
# last share of their values at its end.
_RATES, _RISING_SHARE, _LAST_SHARE = (1e-4, 1e-3), 0.05, 0.02
# An added attention of this size hides a token.
_HIDDEN = -1e4
# The int8 export quantises more finely until its logits have this correlation with those of the trained model.
_CLOSE_ENOUGH = 0.998


@dataclass(frozen=True)
class Lesson:
    """A text with candidates: true ones first."""

    text: str
    labels: list[str]
    true: int


class CrossEncoderModel(nn.Module):
    """A BERT encoder, and a linear head whose outputs are averaged over the tokens of each candidate."""

    def __init__(self, transformer: PreTrainedModel) -> None:
        super().__init__()
        self.transformer = transformer
        self.head = nn.Linear(int(transformer.config.hidden_size), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        segments: Int[Tensor, "batch token"],
        positions: Int[Tensor, "batch token"],
    ) -> Float[Tensor, "batch token"]:
        """A number for each token. Segment 0 is the text, n the n-th candidate, -1 padding."""
        reads, read = segments[:, :, None], segments[:, None, :]
        visible = (read == 0) | ((read == reads) & (read > 0))
        hidden: Tensor = self.transformer(
            input_ids=input_ids,
            attention_mask=torch.where(visible, 0.0, _HIDDEN)[:, None],
            position_ids=positions,
            token_type_ids=(segments > 0).long(),
        ).last_hidden_state
        logits: Tensor = self.head(hidden.float()).squeeze(-1)
        return logits


class _Batch:
    """Sequences as the inputs of the model, padded to the longest one."""

    def __init__(self, sequences: Sequence[Joined]) -> None:
        longest = max(len(sequence.input_ids) for sequence in sequences)
        self._counts = [len(sequence.starts) for sequence in sequences]

        def padded(columns: Iterator[list[int]], padding: int) -> Int[Tensor, "batch token"]:
            return torch.tensor([column + [padding] * (longest - len(column)) for column in columns])

        self.inputs = (
            padded((sequence.input_ids for sequence in sequences), 0),
            padded((sequence.segments for sequence in sequences), -1),
            padded((sequence.positions for sequence in sequences), 0),
        )

    def means(self, values: Float[Tensor, "batch token"]) -> Float[Tensor, " candidate"]:
        """The mean of the values of each candidate, for all sequences one after the other."""
        segments = self.inputs[1]
        count, first = sum(self._counts), np.cumsum([0, *self._counts])[:-1]
        places = (torch.from_numpy(first)[:, None] + segments - 1)[segments > 0]
        sums = torch.zeros(count).index_add(0, places, values[segments > 0])
        return sums / torch.bincount(places, minlength=count)


def train_cross_encoder(
    encoder: Encoder, lessons: Sequence[Lesson], seconds: float, seed: int
) -> tuple[CrossEncoderModel, int]:
    """Train a cross-encoder for a time, but at most some passes, from a BERT encoder; return the number of its texts.

    The embeddings of tokens stay as they are, because most tokens are rare in so few texts.
    """
    transformer = encoder.model.transformer
    torch.manual_seed(seed)
    model, tokens = CrossEncoderModel(transformer), pair_tokenizer(encoder)
    model.requires_grad_(True)
    model.transformer.embeddings.requires_grad_(False)
    body = [weights for weights in model.transformer.parameters() if weights.requires_grad]
    groups = [
        {"params": part, "lr": rate} for part, rate in zip((body, [*model.head.parameters()]), _RATES, strict=True)
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.01, fused=True)
    began, steps, losses = time.monotonic(), 0, list[float]()
    model.train()
    with progress_bar(round(seconds), "s", "cross-encoder") as bar:
        for chosen in _steps(len(lessons), seed):
            spent = time.monotonic() - began
            if steps and spent >= seconds:
                break
            bar.update(round(spent) - bar.n)
            share = max(spent / seconds, steps * _STEP_TEXTS / (_MOST_PASSES * len(lessons)))
            rising = max(_LAST_SHARE, min(share / _RISING_SHARE, 1 - share))
            for group, rate in zip(optimiser.param_groups, _RATES, strict=True):
                group["lr"] = rate * rising
            batch = _Batch([tokens.join(lessons[row].text, lessons[row].labels) for row in chosen])
            truth = [place < lessons[row].true for row in chosen for place in range(len(lessons[row].labels))]
            with torch.autocast("cpu", torch.bfloat16):
                values = model(*batch.inputs)
            loss = nn.functional.binary_cross_entropy_with_logits(
                batch.means(values.float()), torch.tensor(truth).float()
            )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append(float(loss.detach()))
            steps += 1
    print_status(f"cross-encoder: {steps:,} steps of {_STEP_TEXTS} texts, loss {np.mean(losses[-50:]):.3f} at the end")
    return model.eval().requires_grad_(False), min(steps * _STEP_TEXTS, len(lessons))


def check_base(encoder: Encoder) -> None:
    """Refuse an encoder from which no cross-encoder can start.

    Raises:
        BuildError: If it is no BERT encoder, or reads too few tokens.
    """
    config = None if encoder.served is not None else encoder.model.transformer.config
    needed = sum(LENGTHS) + _ENDS
    if config is None or config.model_type != "bert" or config.max_position_embeddings < needed:
        raise BuildError(
            f"--cross-encoder: expected a BERT encoder of at least {needed} positions to start from, found "
            f"{encoder.config.name}; name one with --cross-encoder-base, for example minilm"
        )


def _steps(lessons: int, seed: int) -> Iterator[Int[np.ndarray, " row"]]:
    """Yield the lessons of each step: in each pass, all lessons in another random order."""
    rng = generator(seed, Purpose.ORDER)
    for _ in range(_MOST_PASSES):
        order = rng.permutation(lessons)
        yield from (order[first : first + _STEP_TEXTS] for first in range(0, lessons, _STEP_TEXTS))


def pair_tokenizer(encoder: Encoder) -> PairTokenizer:
    return PairTokenizer(Tokenizer.from_str(encoder.tokenizer.to_str()), LENGTHS)


def export_cross_encoder(model: CrossEncoderModel, encoder: Encoder, folder: Path, sample: Sequence[Lesson]) -> None:
    """Write the graph in int8, and its tokenizer. The logits of the sample decide how finely it quantises."""
    tokens = pair_tokenizer(encoder)
    encoder.tokenizer.save(str(folder / CROSS_TOKENIZER))
    pairs = [Pair(lesson.text, lesson.labels, float("inf")) for lesson in sample]
    with torch.inference_mode():
        batches = [_Batch([tokens.join(pair.query, pair.labels)]) for pair in pairs]
        expected = np.concatenate([batch.means(model(*batch.inputs)).numpy() for batch in batches])
    path = folder / CROSS_ENCODER
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        full = Path(scratch) / "full.onnx"
        _export_graph(model, full)

        def close_enough() -> bool:
            session = open_session(path, "int8", torch.get_num_threads(), "cpu")
            scored = CrossEncoder(path, tokens, session).score(pairs)
            return bool(np.corrcoef(np.concatenate(scored), expected)[0, 1] >= _CLOSE_ENOUGH)

        quantise_until(full, path, close_enough)


def _export_graph(model: CrossEncoderModel, path: Path) -> None:
    axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("token", min=2)}
    example = torch.tensor([[0] * 4 + [1] * 4] * 2)
    with quiet():
        torch.onnx.export(
            model,
            (example.clone(), example, example.clone()),
            path,
            input_names=[*INPUTS],
            output_names=[OUTPUT],
            dynamic_shapes=dict.fromkeys(INPUTS, axes),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
