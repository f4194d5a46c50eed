"""The query encoder: a tokenizer and an ONNX graph, which includes pooling and normalisation."""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from recollect.core import extras
from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.files import TOKENIZER
from recollect.core.bundle.manifest import EncoderInfo, Precision
from recollect.core.errors import opening
from recollect.core.settings import ConnectionSettings, Device
from recollect.core.tokenizer import encode_beginnings, open_tokenizer

GRAPH = "encoder.onnx"
# Number of texts in one batch of the encoder. The texts of a batch have similar lengths, so that padding costs little.
# An int8 transformer gets one text at a time: a batch has one scale for its activations, so the vector of a text would
# depend on the other texts of the batch. In int8, batches are not faster anyway, because int8 runs on the CPU. A static
# encoder has scales of its tokens only.
_BATCH_ROWS, _INT8_ROWS = 32, 1

# Maximum number of vectors that `encode_known` keeps.
_MOST_KNOWN = 256

# The words of a text: a part between spaces with characters beyond ASCII; ASCII letters and digits together; each
# other printable ASCII character alone.
_WORDS = re.compile(r"[!-~]*+[^\x00-\x7f][^ \t\n\r]*|[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
# The normalizer removes these characters, and so joins their neighbours.
_REMOVED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Maximum number of known words, and maximum length of a known word.
_MOST_WORDS, _LONGEST_WORD = 65_536, 64

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_INT8_ON_GPU = "int8 runs on the CPU only; build with --precision fp16 for a GPU"
_NO_CUDA = "ONNX Runtime finds no CUDA GPU or does not support CUDA; it needs recollect-xmc[gpu] in place of [cpu]"


@dataclass(frozen=True)
class Side:
    """Tokenises the texts of one side: queries and instances, or labels. Without `words`, only the tokenizer does."""

    tokenizer: Tokenizer
    words: WordPieces | None
    prompt: str

    def tokenise(self, texts: Sequence[str]) -> list[tuple[list[int], bool]]:
        """The ids of each text, and whether it was truncated."""
        texts = [self.prompt + text for text in texts]
        known = [self.words and self.words.encode(text) for text in texts]
        unknown = [text for text, ids in zip(texts, known, strict=True) if ids is None]
        encodings = encode_beginnings(self.tokenizer, unknown) if unknown else []
        others = ((encoding.ids, bool(encoding.overflowing)) for encoding in encodings)
        return [ids or next(others) for ids in known]


@dataclass(frozen=True)
class Tokens:
    """A tokenised batch; `truncated` marks the texts that are longer than the encoder's limit.

    For a server, which has the tokenizer, `texts` are the texts with their prompts, and `ids` is empty.
    """

    ids: list[list[int]]
    truncated: list[bool]
    texts: list[str] = field(default_factory=list)


class TextEncoder(abc.ABC):
    """Encodes texts as unit vectors.

    Attributes:
        cpu_reason: Why the requested GPU is not used; empty if it is used, or if no GPU was requested.
    """

    dim: int
    cpu_reason: str = ""

    def __init__(self) -> None:
        self._known: dict[str, np.ndarray] = {}

    @staticmethod
    def of(
        bundle: Bundle,
        threads: int,
        device: Device = "cpu",
        parallel: int = 1,
        connections: ConnectionSettings | None = None,
    ) -> TextEncoder:
        """Open the encoder of a bundle. Versions with an equal encoder share it.

        Args:
            connections: The connection to the server of the vectors; None reads the environment variables.

        Raises:
            BundleError: If a file does not open, or the server has another model than the bundle.
            EncoderDownError, SettingsError: If the vectors come from a server, and it does not answer or is not given.
        """
        if bundle.manifest.encoder.kind == "server":
            hook = extras.load("encoder", "server")
            encoder: TextEncoder = hook.open_encoder(
                bundle, threads, device, connections or ConnectionSettings.of_environment()
            )
            return encoder
        return QueryEncoder.of_files(bundle, threads, device, parallel)

    @property
    def problem(self) -> str | None:
        """Why the server of the vectors gives none at present; None if it gives some, or if there is no server."""
        return None

    @abc.abstractmethod
    def tokenise(self, queries: Sequence[str], labels: Sequence[str] = ()) -> Tokens:
        """Tokenise queries, then labels, each with the prompt and the greatest length of its side."""

    @abc.abstractmethod
    def encode(self, tokens: Tokens, checkpoint: Callable[[], None] = lambda: None) -> Float[np.ndarray, "query dim"]:
        """Encode tokenised texts as unit vectors; `checkpoint` is called before each batch of the encoder."""

    def encode_texts(self, queries: Sequence[str], labels: Sequence[str] = ()) -> Float[np.ndarray, "text dim"]:
        """Encode queries or instances, then labels, as unit vectors."""
        return self.encode(self.tokenise(queries, labels))

    def encode_known(self, text: str) -> Float[np.ndarray, "1 dim"]:
        """Encode a query that the next version is likely to encode too, for example a golden query. Keep its vector."""
        vector = self._known.get(text)
        if vector is None:
            vector = self.encode_texts([text])
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[text] = vector
        return vector


class QueryEncoder(TextEncoder):
    """An encoder of files of the bundle.

    Args:
        parallel: Number of batches that are computed at the same time, each on the threads of the session. For many
            short texts, this is faster than more threads of the session.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: WordPieces | None,
        session: onnxruntime.InferenceSession,
        info: EncoderInfo,
        device: Device = "cpu",
        parallel: int = 1,
    ) -> None:
        super().__init__()
        self._tokenizer, self._words = tokenizer, words
        self._session, self._pad_id = session, info.pad_id
        self._parallel = parallel
        self._info = info
        self._batch_rows = _INT8_ROWS if info.precision == "int8" and info.kind == "transformer" else _BATCH_ROWS
        missing = device != "cpu" and _CUDA not in session.get_providers()
        self.cpu_reason = f"encoder.onnx: {_INT8_ON_GPU if info.precision == 'int8' else _NO_CUDA}" if missing else ""
        self.dim = session.get_outputs()[0].shape[-1]

    @classmethod
    def of_files(cls, bundle: Bundle, threads: int, device: Device, parallel: int) -> QueryEncoder:
        """Open the encoder of a bundle. Versions with an equal encoder share it."""
        info, components = bundle.manifest.encoder, bundle.components
        tokenizer = components.open(open_tokenizer, TOKENIZER, info.tokens)
        words = components.open(_open_words, TOKENIZER, tokenizer, info.tokens)
        session = components.open(open_session, GRAPH, info.precision, threads, device)
        return components.open(_join, GRAPH, tokenizer, words, session, info, device, parallel)

    @classmethod
    def open(cls, folder: Path, info: EncoderInfo, threads: int) -> QueryEncoder:
        """Open an encoder that is not part of a bundle yet."""
        tokenizer = open_tokenizer(folder / TOKENIZER, info.tokens)
        words = _open_words(folder / TOKENIZER, tokenizer, info.tokens)
        return cls(tokenizer, words, open_session(folder / GRAPH, info.precision, threads, "cpu"), info)

    def tokenise(self, queries: Sequence[str], labels: Sequence[str] = ()) -> Tokens:
        rows = Side(self._tokenizer, self._words, self._info.query_prompt).tokenise(queries)
        rows += self._labels.tokenise(labels) if labels else []
        # A text without tokens gets a padding token, as in training.
        return Tokens([ids or [self._pad_id] for ids, _ in rows], [truncated for _, truncated in rows])

    @functools.cached_property
    def _labels(self) -> Side:
        """The side of the labels. Most services encode no label, so its tokenizer is copied at first use."""
        tokenizer, words, length = self._tokenizer, self._words, self._info.label_max_length
        if length is not None and length != self._info.max_length:
            tokenizer = Tokenizer.from_str(tokenizer.to_str())
            tokenizer.enable_truncation(length)
            words = words and WordPieces(tokenizer, length)
        return Side(tokenizer, words, self._info.label_prompt)

    def encode(self, tokens: Tokens, checkpoint: Callable[[], None] = lambda: None) -> Float[np.ndarray, "query dim"]:
        vectors = np.empty((len(tokens.ids), self.dim), dtype=np.float32)
        order = np.argsort([len(ids) for ids in tokens.ids], kind="stable")
        batches = [order[start : start + self._batch_rows] for start in range(0, len(order), self._batch_rows)]

        def encode_batch(rows: Int[np.ndarray, " row"]) -> None:
            checkpoint()
            vectors[rows] = self._run([tokens.ids[row] for row in rows])

        if self._parallel == 1 or len(batches) < 2:
            for rows in batches:
                encode_batch(rows)
        else:
            with ThreadPoolExecutor(self._parallel) as threads:
                for _ in threads.map(encode_batch, batches):
                    pass
        return vectors

    def _run(self, rows: list[list[int]]) -> Float[np.ndarray, "row dim"]:
        lengths = np.array([len(ids) for ids in rows])
        mask = np.arange(lengths.max()) < lengths[:, None]
        input_ids = np.full(mask.shape, self._pad_id, dtype=np.int64)
        input_ids[mask] = np.concatenate(rows)
        feed = {"input_ids": input_ids, "attention_mask": mask.astype(np.int64)}
        vectors: np.ndarray = self._session.run(["vectors"], feed)[0]
        return vectors


class WordPieces:
    """Tokenises texts word by word, with a table of known words; thread-safe.

    A BERT tokenizer splits a text at spaces and punctuation, and then splits each word into pieces, without regard to
    the other words. So the pieces of a word can be kept. This gives the same ids as the tokenizer, several times as
    fast. A long text costs only as much as its beginning, because tokenising stops at the encoder's limit.

    The tokenizer, for which `treats_words_alone` must be true, splits unknown words.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        encoding = tokenizer.encode("a")
        first = encoding.special_tokens_mask.index(0)
        self._before, self._after = encoding.ids[:first], encoding.ids[first + 1 :]
        self._room = max_length - len(self._after)
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> tuple[list[int], bool] | None:
        """The ids of a text, and whether it was truncated. None if only the tokenizer can tokenise the text."""
        if _REMOVED.search(text) or any(content in text for content in self._added):
            return None
        ids, room, known = self._before.copy(), self._room, self._known
        for match in _WORDS.finditer(text):
            word = match[0]
            pieces = known.get(word)
            ids += self._split(word) if pieces is None else pieces
            if len(ids) > room:
                return ids[:room] + self._after, True
        return ids + self._after, False

    def _split(self, word: str) -> list[int]:
        pieces: list[int] = encode_beginnings(self._tokenizer, [word], add_special_tokens=False)[0].ids
        if len(word) <= _LONGEST_WORD:
            if len(self._known) >= _MOST_WORDS:
                self._known.clear()
            self._known[word] = pieces
        return pieces


def treats_words_alone(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer has the components of a BERT tokenizer, so that a word's ids depend on this word only."""
    normalizer, added = tokenizer.normalizer, tokenizer.get_added_tokens_decoder().values()
    return (
        isinstance(tokenizer.model, WordPiece)
        and isinstance(normalizer, BertNormalizer)
        and normalizer.clean_text
        and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
        and not any(token.normalized for token in added)
        and tokenizer.encode("a").special_tokens_mask.count(0) == 1
    )


def _open_words(_: Path, tokenizer: Tokenizer, max_length: int) -> WordPieces | None:
    """The known words as a component, so that a version with another graph and an equal tokenizer shares them."""
    return WordPieces(tokenizer, max_length) if treats_words_alone(tokenizer) else None


def _join(
    _: Path,
    tokenizer: Tokenizer,
    words: WordPieces | None,
    session: onnxruntime.InferenceSession,
    info: EncoderInfo,
    device: Device,
    parallel: int,
) -> QueryEncoder:
    """The encoder as a component, so that two versions with an equal encoder share its known vectors."""
    return QueryEncoder(tokenizer, words, session, info, device, parallel)


def open_session(path: Path, precision: Precision, threads: int, device: Device) -> onnxruntime.InferenceSession:
    """Open an ONNX graph on a device. The session never reads the file again."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads sleep
    options.log_severity_level = 3
    wanted = [_CPU] if device == "cpu" or precision == "int8" else [_CUDA, _CPU]
    providers = [provider for provider in wanted if provider in onnxruntime.get_available_providers()]
    if _CUDA in providers:
        onnxruntime.preload_dlls()  # CUDA and cuDNN from the packages that pip installed
    with opening(path):
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
