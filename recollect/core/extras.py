"""The extras: features that few users need.

Each folder of `recollect/extras/` is one of them. Its code may import everything, and nothing imports its code: the
places below load it when a user asks for it. So a folder can be deleted, with its line here or without.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from recollect.core.errors import SettingsError


class Extra(NamedTuple):
    """A module of an extra.

    Attributes:
        module: Its name below `recollect.extras`.
        package: The package of another project that it needs and that `pip install 'recollect-xmc[FOLDER]'` installs;
            empty if the place has it anyway.
        missing: The beginning of the message if the package is not installed.
    """

    module: str
    package: str = ""
    missing: str = ""


# The place that loads an extra, the word with which a user asks for it, and the module.
EXTRAS: dict[tuple[str, str], Extra] = {
    ("bulk format", "parquet"): Extra("parquet.rows", "pyarrow", "Parquet files need pyarrow"),
    ("bulk workers", "ray"): Extra("ray.tasks", "ray", "--ray: expected the package ray, found none"),
    ("encoder", "server"): Extra("encoder_server.query_encoder"),
    ("key engine", "milvus"): Extra("milvus.collection", "pymilvus", "--engine-uri: needs pymilvus"),
    ("key writer", "milvus"): Extra("milvus.index", "pymilvus", "--engine-uri: needs pymilvus"),
    ("reranker", "server"): Extra("encoder_server.reranker"),
    ("routes", "annif"): Extra("annif.routes"),
    ("runs", "hf"): Extra("hub.runs"),
    ("trained encoder", "server"): Extra("encoder_server.trained"),
    ("verb", "push"): Extra("hub.runs"),
}


def load(place: str, name: str) -> Any:
    """Import the module of an extra.

    Raises:
        SettingsError: If its folder was deleted, or the package that it needs is not installed.
    """
    extra = EXTRAS[place, name]
    folder, _, module = extra.module.partition(".")
    if not (Path(__file__).parents[1] / "extras" / folder / f"{module}.py").exists():
        raise SettingsError(f"{name}: expected the folder recollect/extras/{folder}, found none; restore the folder")
    if extra.package and importlib.util.find_spec(extra.package) is None:
        raise SettingsError(f"{extra.missing}; pip install 'recollect-xmc[{folder}]'")
    return importlib.import_module(f"recollect.extras.{extra.module}")
