"""Short names of encoders on the Hugging Face hub, for texts that are not English. `--help` reads this module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shorthand:
    """A model with a short name for `--encoder`.

    Attributes:
        source: Name of the model on the hub.
        query_prompt: Text before each instance and query, which the model expects and does not declare.
        about: Dimensions and licence, for the help.
    """

    source: str
    query_prompt: str
    label_prompt: str
    about: str


MULTILINGUAL, MULTILINGUAL_STATIC = "multilingual", "multilingual-static"
SHORTHANDS = {
    MULTILINGUAL: Shorthand("intfloat/multilingual-e5-small", "query: ", "passage: ", "384 dimensions, MIT"),
    MULTILINGUAL_STATIC: Shorthand(
        "sentence-transformers/static-similarity-mrl-multilingual-v1", "", "", "1,024 dimensions, Apache 2.0"
    ),
}
