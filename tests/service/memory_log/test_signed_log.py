"""Signed logs: readers with public keys refuse entries that are unsigned, foreign, changed, moved or left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.service.bundle.signing import read_verify_keys
from recollect.service.bundle.signing_key import SigningKey, read_signing_key
from recollect.service.errors import KeyFileError, MemoryLogError
from recollect.service.memory_log.folder_segments import FolderSegments
from recollect.service.memory_log.log import MemoryLog
from recollect.service.memory_log.log_keys import LogKeys
from recollect.service.memory_log.segments import segment_name
from recollect.service.store.store import Store
from tests.keys import Pair, write_pair
from tests.service.memory_log.logs import append, folder_log, label, uids


@pytest.fixture(autouse=True)
def one_group_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderSegments, "max_bytes", 1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """Key pairs of two writers."""
    return [write_pair(tmp_path_factory.mktemp("keys")) for _ in range(2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def signing(pairs: list[Pair]) -> SigningKey:
    return read_signing_key(pairs[0].private)


@pytest.fixture
def write(folder: Path, signing: SigningKey) -> Callable[..., None]:
    """Append labels, each in a segment of its own, signed with the first key."""

    def write(*uids: str) -> None:
        log = folder_log(folder, LogKeys(lambda: signing.verify_keys, signing))
        for uid in uids:
            append(log, label(uid))

    return write


@pytest.fixture
def reader(folder: Path, pairs: list[Pair]) -> Callable[..., MemoryLog]:
    """A reader that accepts the first key, or the keys with these numbers."""

    def reader(*numbers: int) -> MemoryLog:
        path = folder.parent / "public"
        path.write_bytes(b"".join(pairs[number].public.read_bytes() for number in numbers or [0]))
        keys = read_verify_keys(path)
        return folder_log(folder, LogKeys(lambda: keys))

    return reader


def test_signed_entries_are_accepted_with_and_without_public_keys(
    write: Callable[..., None], reader: Callable[..., MemoryLog], folder: Path
) -> None:
    write("a", "b")
    write("c")
    assert uids(reader().read()) == uids(reader(1, 0).read()) == uids(folder_log(folder).read()) == ["a", "b", "c"]


def test_unsigned_entries_are_refused(
    write: Callable[..., None], reader: Callable[..., MemoryLog], folder: Path, pairs: list[Pair]
) -> None:
    append(folder_log(folder), label("a"))
    with pytest.raises(MemoryLogError, match="byte 0: expected entries that are signed for .*, found no signature"):
        reader().read()
    with pytest.raises(MemoryLogError, match="found no signature"):
        write("b")  # a signature would cover the entries before it
    assert uids(folder_log(folder).read()) == ["a"]


def test_writer_without_the_private_key_cannot_append_to_a_signed_log(
    write: Callable[..., None], reader: Callable[..., MemoryLog], folder: Path
) -> None:
    write("a")
    for log in (folder_log(folder), reader()):
        with pytest.raises(MemoryLogError, match="expected a private key, .* found none; name the key with --sign"):
            append(log, label("b"))
    assert uids(reader().read()) == ["a"]


def test_foreign_entries_are_refused_until_their_key_is_trusted(
    write: Callable[..., None], reader: Callable[..., MemoryLog], folder: Path, pairs: list[Pair]
) -> None:
    write("a")
    foreign = read_signing_key(pairs[1].private)
    with pytest.raises(MemoryLogError, match="found another signature"):
        append(folder_log(folder, LogKeys(lambda: foreign.verify_keys, foreign)), label("b"))
    both = reader(0, 1)
    append(folder_log(folder, LogKeys(both._groups._keys.verify, foreign)), label("b"))
    assert uids(both.read()) == ["a", "b"]
    with pytest.raises(MemoryLogError, match=f"{segment_name(2)}: byte 0: .*found another signature"):
        reader().read()


def test_changed_moved_and_missing_segments_are_refused(
    write: Callable[..., None], reader: Callable[..., MemoryLog], folder: Path
) -> None:
    write("a", "b", "c")
    paths = [folder / segment_name(number) for number in (1, 2, 3)]
    contents = [path.read_bytes() for path in paths]

    def refused(*changed: bytes | None) -> str:
        for path, content in zip(paths, changed, strict=True):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
        with pytest.raises(MemoryLogError) as caught:
            reader().read()
        return str(caught.value)

    a, b, c = contents
    assert "expected entry 2 after the group before, found entry 3" in refused(a, c, b)
    assert "expected all entries after 0, found that entries 1 to 1 were removed" in refused(None, b, c)
    for place in range(0, len(b), 7):
        assert "expected" in refused(a, b[:place] + bytes([b[place] ^ 64]) + b[place + 1 :], c)
    assert "found changed bytes" in refused(a.replace(b"text of a", b"text of b"), b, c)
    missing = reader()
    paths[0].write_bytes(a)
    paths[1].write_bytes(b)
    assert uids(missing.read()) == ["a", "b", "c"]
    paths[2].unlink()
    with pytest.raises(MemoryLogError, match="another program has shortened the log"):
        missing.read()


def test_group_of_another_log_with_the_same_key_is_refused(
    write: Callable[..., None], reader: Callable[..., MemoryLog], folder: Path, signing: SigningKey
) -> None:
    write("a", "b")
    other = folder_log(folder.parent / "other", LogKeys(lambda: signing.verify_keys, signing))
    append(other, label("x"))
    append(other, label("y"))
    (folder / segment_name(2)).write_bytes((folder.parent / "other" / segment_name(2)).read_bytes())
    with pytest.raises(MemoryLogError, match="expected entry 2 after the group before, found entry 2 after another"):
        reader().read()


def test_private_key_must_match_the_public_keys_of_the_store(tmp_path: Path, pairs: list[Pair]) -> None:
    store = Store(tmp_path, pairs[0].public)
    assert LogKeys.of(store, read_signing_key(pairs[0].private)).signing is not None
    with pytest.raises(KeyFileError, match="expected the private key of one of the public keys"):
        LogKeys.of(store, read_signing_key(pairs[1].private))
