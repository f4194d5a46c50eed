from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from recollect.core.bundle.arrays import map_array
from recollect.core.errors import BundleError
from recollect.core.system.files import save_array


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "array.npy"


@pytest.mark.parametrize("content", [[], [0], list(range(1000))])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_saved_array_is_mapped_unchanged_and_cannot_be_written(path: Path, content: list[int], dtype: str) -> None:
    save_array(path, np.array(content).astype(dtype))
    mapped = map_array(path, dtype, len(content))
    assert isinstance(mapped.base, np.memmap)
    assert not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, np.load(path))


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("unpickled",)


def test_pickled_array_is_refused(path: Path) -> None:
    np.save(path, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(BundleError, match=r"array\.npy: expected a file that opens, found: .*Python objects"):
        map_array(path, "int64")
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BundleError, match=r"array\.npy: expected a file that opens, found: "):
        map_array(path, "int64")


def header(shape: str, descr: str = "'<i8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        header("(3,)") + bytes(23),
        header("(4611686018427387904,)"),
        header("(99999999999999999999999,)"),
        header("(-1,)") + bytes(8),
        header("(1, __import__('os').getpid())"),
        header("(1,)", "'nonsense'"),
        header("(1,)", "[('x', '|O')]"),
        b"\x93NUMPY\x01\x00\xff\xff{" + b"(" * 65_534,
    ],
    ids=["empty", "cut", "short", "huge", "huger", "negative", "call", "no type", "objects", "deep"],
)
def test_error_for_an_incomplete_array_names_its_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"array\.npy: expected ") as error:
        map_array(path, "int64", 1)
    assert "\n" not in str(error.value)
