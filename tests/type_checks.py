"""The decorator that checks the arguments of a function while tests run. As for mypy, an int is also a float."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
