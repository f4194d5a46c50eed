"""The decorators that check the arguments of a function while tests run. As for mypy, an int is also a float."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(typechecker: Any) -> Callable[[Any], Any]:
    """The decorator of the import hook, without functions inside functions: it would decorate them at each call."""

    def decorate(checked_object: Any) -> Any:
        if "<locals>" in getattr(checked_object, "__qualname__", ""):
            return checked_object
        return _jaxtyped(checked_object, typechecker=typechecker)

    return decorate


jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]
