"""The training methods: the pool of keys, loss, head, defaults and flags of each one."""

from recollect.trainer.methods import prime, table
from recollect.trainer.methods.method import Method, MethodOptions, SymmetricOptions

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        table.RAE,
        table.DEXML,
        table.SOFT_TOP_K,
        prime.PRIME,
        prime.NGAME,
        table.UNIDEC,
        table.SUPCON,
        table.INFONCE,
        table.BCE,
        table.OVA,
    )
}

__all__ = ["METHODS", "Method", "MethodOptions", "SymmetricOptions"]
