import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.trainer.data.dataset import Dataset, open_dataset
from recollect.trainer.distributed import ALONE
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.memory.key_sources import AdaptedKeys, EncodedTexts, KeySource
from recollect.trainer.memory.memory import MemoryPlan, is_complete, open_memory, saved_plan, write_defaults
from recollect.trainer.memory.memory_writer import write_memory
from tests.trainer.helpers import label_lists, learned_adapter, learned_head

# 14 instances and 5 labels in chunks of 4. The last chunk of instances is short, and labels start a new chunk.
CHUNK = 4
KEYS = 19
CHUNK_STARTS = [0, 4, 8, 12, 14, 18]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.trainer.memory.memory_writer._CHUNK_TEXTS", CHUNK)


class Writer:
    """Writes the memory of the toy dataset, counts encoded texts, and can interrupt itself."""

    def __init__(self, dataset: Dataset, encoder: Encoder) -> None:
        self.dataset, self.encoder = dataset, encoder
        self.instances = dataset.read_split("train")
        self.encoded: list[str] = []
        self.interrupt_at: int | None = None
        self._chunks = 0

    def plan(self, **changes: Any) -> MemoryPlan:
        plan = MemoryPlan.of(self.dataset.labels, self.instances, self.encoder, "0" * 64, "float32")
        return MemoryPlan(**(vars(plan) | changes))

    def write(self, folder: Path, **changes: Any) -> int:
        source = EncodedTexts(self.encoder, self.dataset.labels, self.instances.entries, ALONE)
        return self.write_from(source, folder, **changes)

    def write_from(self, source: KeySource, folder: Path, **changes: Any) -> int:
        self.encoded, self._chunks = [], 0
        plan, labels = self.plan(**changes), self.dataset.labels
        return write_memory(folder, plan, labels, self.instances, source, ALONE)

    def write_until(self, chunk: int, folder: Path) -> None:
        """Write the memory until the encoder gets this chunk (counted from 0), and then interrupt the writing."""
        self.interrupt_at = chunk
        with pytest.raises(KeyboardInterrupt):
            self.write(folder)
        self.interrupt_at = None

    def count(self, texts: Sequence[str]) -> None:
        if self._chunks == self.interrupt_at:
            raise KeyboardInterrupt
        self._chunks += 1
        self.encoded.extend(texts)


@pytest.fixture
def writer(toy: Path, tiny_encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> Writer:
    writer = Writer(open_dataset(toy), tiny_encoder)
    real = Encoder.encode

    def encode(self: Encoder, texts: Sequence[str], *arguments: Any) -> np.ndarray:
        writer.count(texts)
        return real(self, texts, *arguments)

    monkeypatch.setattr(Encoder, "encode", encode)
    return writer


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestFinishedMemory:
    def test_memory_has_the_keys_votes_and_texts_of_the_dataset_in_its_order(
        self, writer: Writer, tmp_path: Path, toy: Path
    ) -> None:
        assert writer.write(tmp_path / "memory") == KEYS
        memory, config = open_memory(tmp_path / "memory"), writer.encoder.config
        expected = np.concatenate(
            [
                writer.encoder.encode(writer.instances.entries.texts.to_pylist(), config.max_length),
                writer.encoder.encode(writer.dataset.labels.texts.to_pylist(), config.label_max_length),
            ]
        )
        assert memory.keys.shape == (KEYS, writer.encoder.dim)
        np.testing.assert_allclose(memory.keys, expected, atol=1e-6)
        votes = [row.tolist() for row in np.split(memory.value_indices, memory.value_indptr[1:-1])]
        assert votes == label_lists(writer.instances)
        for name, source in (("instances", "train"), ("labels", "labels")):
            written = (tmp_path / "memory" / f"{name}.jsonl").read_text().splitlines()
            given = map(json.loads, (toy / f"{source}.jsonl").read_text().splitlines())
            assert [json.loads(line) for line in written] == [
                {key: row[key] for key in ("uid", "text")} for row in given
            ]

    def test_writing_defaults_changes_only_memory_json(self, writer: Writer, tmp_path: Path) -> None:
        writer.write(tmp_path / "memory")
        before = bytes_of(tmp_path / "memory")
        tuned = {"lambda": 0.1, "temperature": 0.05, "top_b": 50, "label_key_alpha": 0.75}
        write_defaults(tmp_path / "memory", writer.plan(), tuned)
        assert open_memory(tmp_path / "memory").defaults == tuned
        assert saved_plan(tmp_path / "memory") == writer.plan()
        after = bytes_of(tmp_path / "memory")
        assert after.keys() == before.keys()
        assert {name for name in after if after[name] != before[name]} == {"memory.json"}

    @pytest.mark.parametrize("method", ["prime", "unidec"])
    def test_adapted_keys_equal_the_keys_of_the_encoder_with_that_adapter_and_head(
        self, writer: Writer, tmp_path: Path, method: str
    ) -> None:
        torch.manual_seed(7)
        dim = writer.encoder.dim
        adapter, head = learned_adapter(dim, 48), learned_head(method, dim, len(writer.dataset.labels))
        writer.write(tmp_path / "frozen")
        frozen = open_memory(tmp_path / "frozen").keys
        labels = VectorTable(torch.tensor(frozen[14:]), "labels")
        model = VectorDualEncoder(dim, adapter, head).eval()
        assert (
            writer.write_from(AdaptedKeys(model, frozen[:14], labels, "cpu"), tmp_path / "adapted", dim=model.key_dim)
            == KEYS
        )
        assert writer.encoded == []
        adapted = EncodedTexts(
            writer.encoder.with_adapter(adapter, head), writer.dataset.labels, writer.instances.entries, ALONE
        )
        writer.write_from(adapted, tmp_path / "encoded", dim=model.key_dim)
        keys = open_memory(tmp_path / "adapted").keys
        assert np.abs(keys[:, :dim] - frozen).max() > 0.1
        np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(keys, open_memory(tmp_path / "encoded").keys, atol=1e-6)

    def test_half_precision_keys_are_rounded_single_precision_keys(self, writer: Writer, tmp_path: Path) -> None:
        writer.write(tmp_path / "single")
        writer.write(tmp_path / "half", key_dtype="float16")
        half = open_memory(tmp_path / "half").keys
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, open_memory(tmp_path / "single").keys.astype(np.float16))


class TestInterruptedMemory:
    @pytest.mark.parametrize("chunk", [2, 4])
    def test_resumed_run_encodes_only_texts_without_keys_and_gives_equal_bytes(
        self, writer: Writer, tmp_path: Path, chunk: int
    ) -> None:
        writer.write(tmp_path / "whole")
        everything = writer.encoded
        writer.write_until(chunk, tmp_path / "memory")
        assert not is_complete(tmp_path / "memory")
        assert writer.write(tmp_path / "memory") == KEYS - CHUNK_STARTS[chunk]
        assert writer.encoded == everything[CHUNK_STARTS[chunk] :]
        assert bytes_of(tmp_path / "memory") == bytes_of(tmp_path / "whole")

    def test_keys_written_after_the_last_save_of_progress_are_discarded(self, writer: Writer, tmp_path: Path) -> None:
        writer.write(tmp_path / "whole")
        writer.write_until(2, tmp_path / "memory")
        with (tmp_path / "memory" / "keys.npy").open("ab") as file:
            file.write(b"half a row, and then some" * 1_000)
        writer.write(tmp_path / "memory")
        assert bytes_of(tmp_path / "memory") == bytes_of(tmp_path / "whole")

    @pytest.mark.parametrize(
        ("name", "damage"),
        [
            ("keys.npy", lambda content: content[:-4]),
            ("keys.npy", None),
            ("progress.json", lambda content: content[:-4]),
        ],
    )
    def test_unfinished_memory_with_damaged_files_is_written_from_the_start(
        self, writer: Writer, tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None
    ) -> None:
        writer.write(tmp_path / "whole")
        writer.write_until(2, tmp_path / "memory")
        damaged = tmp_path / "memory" / name
        content = damaged.read_bytes()
        damaged.unlink()
        if damage is not None:
            damaged.write_bytes(damage(content))
        assert writer.write(tmp_path / "memory") == KEYS
        assert bytes_of(tmp_path / "memory") == bytes_of(tmp_path / "whole")


class TestOpening:
    @pytest.fixture
    def folder(self, writer: Writer, tmp_path: Path) -> Path:
        writer.write(tmp_path / "memory")
        return tmp_path / "memory"

    def test_unknown_format_version_is_refused_even_if_other_fields_changed(self, folder: Path) -> None:
        (folder / "memory.json").write_text('{"format_version": 1}')
        with pytest.raises(MemoryFolderError, match=r"memory\.json: expected format_version 2, found 1"):
            open_memory(folder)
        assert saved_plan(folder) is None

    def test_damaged_files_are_refused_by_their_names(self, folder: Path) -> None:
        indices, indptr = np.load(folder / "value_indices.npy"), np.load(folder / "value_indptr.npy")
        cut = (folder / "value_indices.npy").read_bytes()[:-1]
        shape, votes = r"expected float32 of shape \(19, 32\), found", "expected instances to vote for labels below 5"
        for name, content, message in (
            ("value_indices.npy", cut, "expected an array, found: .*run `recollect train` again"),
            ("value_indices.npy", None, "expected an array, found: "),
            ("value_indices.npy", np.where(np.arange(len(indices)) == 2, 5, indices), votes),
            ("value_indptr.npy", np.where(np.arange(len(indptr)) == 3, indptr[-1], indptr), votes),
            ("keys.npy", np.zeros((KEYS - 1, 32), np.float32), shape),
            ("keys.npy", np.zeros((KEYS, 32), np.float16), shape),
            ("keys.npy", np.array([{}], dtype=object), "expected an array, found: "),  # needs pickle
            ("memory.json", b"{", "expected a memory's header, found: "),
            ("memory.json", b'{"format_version": 2}', "expected a memory's header, found: "),
        ):
            whole = (folder / name).read_bytes()
            if isinstance(content, np.ndarray):
                np.save(folder / name, content)
            else:
                (folder / name).write_bytes(content or b"")
            with pytest.raises(MemoryFolderError, match=message) as refusal:
                open_memory(folder)
            assert name in str(refusal.value) or message == votes
            (folder / name).write_bytes(whole)
