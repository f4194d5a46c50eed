"""The training methods, one file for each method: its pool of keys, loss, head, defaults and flags."""

from recollect.trainer.methods import bce, dexml, infonce, ova, prime, rae, softtopk, supcon, unidec
from recollect.trainer.methods.method import Method, MethodOptions, SymmetricOptions

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD for module in (rae, dexml, softtopk, prime, unidec, supcon, infonce, bce, ova)
}

__all__ = ["METHODS", "Method", "MethodOptions", "SymmetricOptions"]
