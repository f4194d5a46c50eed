"""The keys of a signed log: public keys verify its groups, and a private key signs new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recollect.service.bundle.signing import VerifyKeys
from recollect.service.bundle.signing_key import SigningKey
from recollect.service.store.store import Store


@dataclass(frozen=True)
class LogKeys:
    """The keys of a signed log.

    Attributes:
        verify: Returns the public keys, one of which must have signed each group; None: groups need no signature.
        signing: The private key that signs new groups; None: new groups are not signed.
    """

    verify: Callable[[], VerifyKeys] | None = None
    signing: SigningKey | None = None

    @classmethod
    def of(cls, store: Store, signing: SigningKey | None = None) -> LogKeys:
        """The public keys of a store, and a private key.

        A signature covers all groups before it. A writer therefore signs only after groups that it has verified: with
        the public keys of the store, otherwise with its own public key.

        Raises:
            KeyFileError: If the private key does not match the public keys of the store.
        """
        keys = store.verify_keys
        if keys is None:
            return cls(None if signing is None else lambda: signing.verify_keys, signing)
        if signing is not None:
            signing.require_match(keys.content)
        return cls(lambda: keys.content, signing)
