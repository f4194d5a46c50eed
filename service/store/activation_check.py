"""Checks activation records: each must be signed, and its generation must not be lower than one seen before.

Otherwise a program that can write to the store could replay the record of an old version, whose signature is valid. If
this program puts back an old ACTIVATION and an old LOG, the next activation gets a generation that was used before. So
a record with the highest generation must also equal the record that was seen first.

The highest generation and the SHA-256 of its record are kept in a file in the private cache, so that the check also
holds after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from recollect.service.bundle.signing import VerifyKeys
from recollect.service.bundle.signing_key import SigningKey
from recollect.service.errors import StoreError
from recollect.service.reloaded_file import ReloadedFile
from recollect.service.storage.bundle_cache import BundleCache
from recollect.service.storage.control_files import FolderFiles
from recollect.service.store.activation_record import ActivationRecord

SEEN = "GENERATION"


class ActivationCheck:
    """Checks the activation records of one store.

    Args:
        keys: Public keys; one of them must have signed each record.
        cache: The private cache of the store, in which the highest generation is kept.
        name: Name of the record in error messages.
    """

    def __init__(self, keys: ReloadedFile[VerifyKeys], cache: BundleCache, name: str) -> None:
        self._keys, self._cache, self._name = keys, cache, name

    def check(self, record: ActivationRecord) -> None:
        """Refuse a record that is not signed or is older than one that was checked before.

        Raises:
            StoreError: If the record is refused, or the cache cannot be used.
        """
        keys = self._keys.content
        if record.signature is None:
            raise StoreError(
                f"{self._name}: expected an activation that is signed for {keys.name}, found one without a signature; "
                f"run `recollect activate {record.version} --sign PRIVATE`"
            )
        if not is_signed(record, keys):
            raise StoreError(
                f"{self._name}: expected an activation that is signed for {keys.name}, found other content or another "
                f"signature; run `recollect activate {record.version} --sign PRIVATE`"
            )
        self._cache.prepare()
        files, digest = FolderFiles(self._cache.root), hashlib.sha256(record.signed_bytes()).hexdigest()
        if (record.generation, digest) == self._highest(files):
            return
        with files.exclusive():
            highest, digest_of_highest = self._highest(files)
            if record.generation < highest:
                raise StoreError(
                    f"{self._name}: expected generation {highest} or higher, found {record.generation}: an old "
                    f"activation was put back; if you restored the store from a backup, remove {self._path}"
                )
            if record.generation == highest and digest != digest_of_highest:
                raise StoreError(
                    f"{self._name}: expected the activation that was seen with generation {highest}, found another one "
                    f"with this generation; run `recollect activate {record.version} --sign PRIVATE` again"
                )
            files.update(SEEN, lambda _: f"{record.generation} {digest}\n".encode())

    @property
    def _path(self) -> Path:
        return self._cache.root / SEEN

    def _highest(self, files: FolderFiles) -> tuple[int, str]:
        """The highest generation that was seen, and the SHA-256 of its record; -1 if none was seen."""
        content = files.read(SEEN)
        try:
            generation, digest = (b"-1 none" if content is None else content).decode().split()
            return int(generation), digest
        except ValueError:
            raise StoreError(
                f"{self._path}: expected the highest generation of {self._name}, found other content; remove the file "
                "if you trust the present activation"
            ) from None


def sign_record(record: ActivationRecord, key: SigningKey) -> ActivationRecord:
    """The record with the key's signature."""
    return record.model_copy(update={"signature": key.sign(record.signed_bytes()).hex()})


def is_signed(record: ActivationRecord, keys: VerifyKeys) -> bool:
    """Whether a record has a signature by one of these keys."""
    with contextlib.suppress(ValueError):  # the signature is not hexadecimal
        return keys.signed(record.signed_bytes(), bytes.fromhex(record.signature or ""))
    return False
