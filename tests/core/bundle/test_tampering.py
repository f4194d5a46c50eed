"""A signed bundle is refused after any change of any file, and the error names the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import recollect
from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import BUNDLE_FILES, MANIFEST, SIGNATURE
from recollect.core.bundle.signing import read_signing_key, read_verify_keys, sign_manifest
from recollect.core.errors import BundleError
from tests.keys import write_pair
from tests.processes import copy_store
from tests.service.stores import add_version, light_encoder

FILES = sorted(BUNDLE_FILES | {MANIFEST, SIGNATURE})


class Published(NamedTuple):
    store: Path
    key: Path

    @property
    def bundle(self) -> Path:
        return self.store / "bundles" / "v1"

    def verify(self) -> int:
        return recollect.main(["verify", "v1", "--store", str(self.store), "--verify-key", str(self.key)])


@pytest.fixture(scope="module")
def pristine(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("published")
    keys = write_pair(folder)
    published = Published(copy_store(built.store, folder / "store"), keys.public)
    add_version(published.store, built.version, "v1", light_encoder)
    shutil.rmtree(published.store / "bundles" / built.version)
    sign_manifest(published.bundle, read_signing_key(keys.private))
    return published


@pytest.fixture
def published(pristine: Published, tmp_path: Path) -> Published:
    return Published(copy_store(pristine.store, tmp_path / "store"), pristine.key)


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], list[str]]:
    def damage(path: Path) -> list[str]:
        path.write_bytes(change(path.read_bytes()))
        return [path.name]

    return damage


def flip(place: float, bit: int) -> Callable[[Path], list[str]]:
    def change(content: bytes) -> bytes:
        row = int(place * (len(content) - 1))
        return content[:row] + bytes([content[row] ^ 1 << bit]) + content[row + 1 :]

    return rewrite(change)


def swap(path: Path) -> list[str]:
    """Exchange the content of two files. If one file is the manifest, exchange its signature too."""
    content = path.read_bytes()
    others = sorted(BUNDLE_FILES if path.name in BUNDLE_FILES else {MANIFEST, SIGNATURE})
    other = next(other for other in map(path.with_name, others) if other.read_bytes() != content)
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return [path.name, other.name]


def rename(path: Path) -> list[str]:
    path.rename(path.with_name(f"{path.name}.bak"))
    return [path.name, f"{path.name}.bak"]


def copy_beside(path: Path) -> list[str]:
    path.with_name(f"{path.name}.bak").write_bytes(path.read_bytes())
    return [f"{path.name}.bak"]


def link(path: Path) -> list[str]:
    path.rename(path.parents[3] / "elsewhere")
    path.symlink_to(path.parents[3] / "elsewhere")
    return [path.name]


def remove(path: Path) -> list[str]:
    path.unlink()
    return [path.name]


def become_a_folder(path: Path) -> list[str]:
    path.unlink()
    path.mkdir()
    return [path.name]


DAMAGES: dict[str, Callable[[Path], list[str]]] = {
    "first byte": flip(0, 0),
    "middle byte": flip(0.5, 3),
    "last byte": flip(1, 7),
    "cut short": rewrite(lambda content: content[:-1]),
    "cut in half": rewrite(lambda content: content[: len(content) // 2]),
    "emptied": rewrite(lambda _: b""),
    "lengthened": rewrite(lambda content: content + b"\0"),
    "preceded by white space": rewrite(lambda content: b" " + content),
    "very long": rewrite(lambda content: content * (1 + (1 << 20) // len(content))),
    "swapped": swap,
    "renamed": rename,
    "copied beside": copy_beside,
    "linked": link,
    "removed": remove,
    "a folder": become_a_folder,
}


# Two damages for every file, and all damages for three of the files.
CASES = {(name, damage): None for name in FILES for damage in ("middle byte", "removed")}
CASES |= {(name, damage): None for name in ("encoder.onnx", MANIFEST, SIGNATURE) for damage in DAMAGES}


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_error_names_the_file_that_was_tampered_with(
    published: Published, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    touched = DAMAGES[damage](published.bundle / name)
    # The error for a wrong signature may name the manifest instead of the signature.
    named = {str(published.bundle / each) for each in [*touched, *([MANIFEST] if SIGNATURE in touched else [])]}
    with pytest.raises(BundleError) as error:
        open_bundle(published.bundle, read_verify_keys(published.key))
    assert str(error.value).partition(": expected ")[0] in named
    assert published.verify() == 2
    printed = capsys.readouterr()
    where = printed.err.removeprefix("recollect verify: ").partition(": expected ")[0]
    assert where in named | ({str(published.bundle)} if MANIFEST in touched else set())  # as half of a copy
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_unchanged_bundle_is_accepted(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    assert published.verify() == 0
    assert "signed, 19 files as published" in capsys.readouterr().out
