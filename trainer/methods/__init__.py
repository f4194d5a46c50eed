"""The training methods. Each one is a module of this folder: its flags, loss, head, defaults and source.

The flags of `recollect train`, their help and their checks, and the heads that a checkpoint may have follow from this
registry.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeAlias

from recollect.trainer.methods.method import Method, MethodOptions

METHODS: dict[str, Method] = {
    name: import_module(f"{__name__}.{name}").METHOD
    for name in (
        "rae",
        "dexml",
        "softtopk",
        "prime",
        "ngame",
        "unidec",
        "supcon",
        "infonce",
        "bce",
        "ova",
    )
}

# The value of `--method`.
if TYPE_CHECKING:
    MethodName: TypeAlias = str
else:
    MethodName = Literal[tuple(METHODS)]


def methods_with(option: str) -> list[str]:
    """Return the names of the methods that have an option."""
    return [name for name, method in METHODS.items() if option in method.options.model_fields]


__all__ = ["METHODS", "Method", "MethodName", "MethodOptions", "methods_with"]
