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
from recollect.trainer.encoding.keys import AdaptedKeys, EncodedTexts, KeySource
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.memory.memory import (
    MemoryPlan,
    is_complete,
    open_memory,
    saved_plan,
    write_defaults,
)
from recollect.trainer.memory.memory_writer import write_memory
from tests.trainer.helpers import learned_adapter, learned_head

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
    def test_keys_are_instances_then_labels_in_dataset_order(self, writer: Writer, tmp_path: Path) -> None:
        assert writer.write(tmp_path / "memory") == KEYS
        memory = open_memory(tmp_path / "memory")
        config = writer.encoder.config
        expected = np.concatenate(
            [
                writer.encoder.encode(writer.instances.entries.texts.to_pylist(), config.max_length),
                writer.encoder.encode(writer.dataset.labels.texts.to_pylist(), config.label_max_length),
            ]
        )
        assert memory.keys.shape == (KEYS, writer.encoder.dim)
        np.testing.assert_allclose(memory.keys, expected, atol=1e-6)

    def test_instances_vote_for_their_labels(self, writer: Writer, tmp_path: Path) -> None:
        writer.write(tmp_path / "memory")
        memory = open_memory(tmp_path / "memory")
        votes = [row.tolist() for row in np.split(memory.value_indices, memory.value_indptr[1:-1])]
        relevance = writer.instances.labels.to_csr(5)
        assert votes == [row.indices.tolist() for row in relevance]

    def test_texts_and_uids_are_in_the_order_of_the_keys(self, writer: Writer, tmp_path: Path, toy: Path) -> None:
        writer.write(tmp_path / "memory")
        for name, source in (("instances", "train"), ("labels", "labels")):
            written = (tmp_path / "memory" / f"{name}.jsonl").read_text().splitlines()
            given = (toy / f"{source}.jsonl").read_text().splitlines()
            assert [json.loads(line) for line in written] == [
                {"uid": record["uid"], "text": record["text"]} for record in map(json.loads, given)
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
        (folder / "memory.json").write_text('{"format_version": 2}')
        with pytest.raises(MemoryFolderError, match=r"memory\.json: expected format_version 1, found 2"):
            open_memory(folder)
        assert saved_plan(folder) is None

    @pytest.mark.parametrize("content", ["{", '{"format_version": 1}'])
    def test_broken_memory_json_is_refused(self, folder: Path, content: str) -> None:
        (folder / "memory.json").write_text(content)
        with pytest.raises(MemoryFolderError, match=r"memory\.json: expected a memory's header, found: "):
            open_memory(folder)

    def test_truncated_or_missing_array_is_refused_and_the_error_names_its_file(self, folder: Path) -> None:
        name = "value_indices.npy"
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])
        with pytest.raises(
            MemoryFolderError, match=rf"{name}: expected an array, found: .*run `recollect train` again"
        ):
            open_memory(folder)
        (folder / name).unlink()
        with pytest.raises(MemoryFolderError, match=rf"{name}: expected an array, found: "):
            open_memory(folder)

    def test_keys_of_wrong_shape_or_type_are_refused(self, folder: Path) -> None:
        for keys in (np.zeros((KEYS - 1, 32), np.float32), np.zeros((KEYS, 32), np.float16)):
            np.save(folder / "keys.npy", keys)
            with pytest.raises(MemoryFolderError, match=r"keys\.npy: expected float32 of shape \(19, 32\), found "):
                open_memory(folder)

    def test_pickled_array_is_refused(self, folder: Path) -> None:
        np.save(folder / "keys.npy", np.array([{}], dtype=object))
        with pytest.raises(MemoryFolderError, match=r"keys\.npy: expected an array, found: "):
            open_memory(folder)

    def test_memory_whose_instances_vote_for_an_unknown_label_is_refused(self, folder: Path) -> None:
        indices = np.load(folder / "value_indices.npy")
        indices[2] = 5
        np.save(folder / "value_indices.npy", indices)
        with pytest.raises(MemoryFolderError, match="expected instances to vote for labels below 5, found others"):
            open_memory(folder)

    def test_memory_with_decreasing_value_indptr_is_refused(self, folder: Path) -> None:
        indptr = np.load(folder / "value_indptr.npy")
        indptr[3] = indptr[-1]
        np.save(folder / "value_indptr.npy", indptr)
        with pytest.raises(MemoryFolderError, match="expected instances to vote for labels"):
            open_memory(folder)
