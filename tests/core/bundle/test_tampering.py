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


def flip(place: float, bit: int) -> Callable[[Path], list[str]]:
    def damage(path: Path) -> list[str]:
        content = bytearray(path.read_bytes())
        content[int(place * (len(content) - 1))] ^= 1 << bit
        path.write_bytes(content)
        return [path.name]

    return damage


def keep(share: float) -> Callable[[Path], list[str]]:
    def damage(path: Path) -> list[str]:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * (len(content) - 1))])
        return [path.name]

    return damage


def lengthen(path: Path) -> list[str]:
    with path.open("ab") as file:
        file.write(b"\0")
    return [path.name]


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
    "cut short": keep(1),
    "cut in half": keep(0.5),
    "emptied": keep(0),
    "lengthened": lengthen,
    "swapped": swap,
    "renamed": rename,
    "copied beside": copy_beside,
    "linked": link,
    "removed": remove,
    "a folder": become_a_folder,
}


def cases(files: list[str]) -> list[tuple[str, str]]:
    """The tested pairs of a file and a damage: two damages for every file, and all damages for two of the files."""
    of_each_file = [(name, damage) for name in files for damage in ("middle byte", "removed")]
    return list(
        dict.fromkeys([*of_each_file, *((name, damage) for name in (files[0], files[-1]) for damage in DAMAGES)])
    )


@pytest.mark.parametrize(("name", "damage"), cases(FILES))
def test_error_names_the_file_that_was_tampered_with(
    published: Published, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    touched = DAMAGES[damage](published.bundle / name)
    # The error for a wrong signature may name the manifest instead of the signature.
    named = {MANIFEST if each == SIGNATURE else each for each in touched} | set(touched)
    with pytest.raises(BundleError) as error:
        open_bundle(published.bundle, read_verify_keys(published.key))
    where = str(error.value).partition(": expected ")[0]
    assert where in {str(published.bundle / each) for each in named}
    assert published.verify() == 2
    printed = capsys.readouterr()
    expected = f"{error.value}\n"
    if (name, damage) == (MANIFEST, "removed"):
        expected = f"{published.bundle}: expected a bundle with {MANIFEST}, found one without: a copy is in"
    assert printed.out == ""
    assert printed.err.startswith(f"recollect verify: {expected}")
    assert printed.err.count("\n") == 1


def test_unchanged_bundle_is_accepted(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    assert published.verify() == 0
    assert "signed, 19 files as published" in capsys.readouterr().out
