"""Subject vocabularies of Annif: the subjects and their names, as TSV or as SKOS.

    vocab.tsv | *-vocab.tsv        uri <TAB> name [<TAB> notation]; a subject without a name is deprecated
    *.ttl | *.nt | *.rdf           SKOS in Turtle, N-Triples or RDF/XML: the instances of skos:Concept with a URI

All of them may end in `.gz`. A concept with `owl:deprecated true` is deprecated. A deprecated subject is not a label.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.trainer.data.formats.lines import read_lines
from recollect.trainer.errors import DatasetError

FIELDS = ("prefLabel", "altLabel", "notation")

_TSV = ("vocab.tsv", "*-vocab.tsv")
# rdflib's parser of Turtle also reads N-Triples, a part of Turtle, and its errors name the line.
_SKOS = {".ttl": "turtle", ".nt": "turtle", ".rdf": "xml"}


@dataclass(frozen=True)
class Subject:
    """A subject of a vocabulary.

    Attributes:
        uri: Its URI, which is the uid of the label.
        names: Its names by field: `prefLabel`, `altLabel` and `notation`.
        where: File, and line or language, for error messages.
    """

    uri: str
    names: dict[str, list[str]]
    where: str

    def text(self, fields: tuple[str, ...]) -> str:
        """Join the names in these fields."""
        return "; ".join(dict.fromkeys(name for field in fields for name in self.names.get(field, []) if name.strip()))


def find_vocabularies(folder: Path) -> list[Path]:
    """All vocabularies of a folder."""
    return find_matches(folder, (*_TSV, *(f"*{suffix}" for suffix in _SKOS)))


def find_matches(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files whose names match one of the patterns, also with `.gz` at the end."""
    names = (f"{pattern}{gz}" for pattern in patterns for gz in ("", ".gz"))
    return sorted({path for name in names for path in folder.glob(name) if path.is_file()})


def read_vocabulary(path: Path, language: str | None) -> Iterator[Subject]:
    """Yield the subjects of a vocabulary that are not deprecated: the rows of a TSV file, or concepts sorted by URI.

    Args:
        path: The vocabulary.
        language: Language of the names; None if the vocabulary has only one.

    Raises:
        DatasetError: If the vocabulary is invalid, or does not have the language. The message names the file.
    """
    syntax = _SKOS.get(Path(path.name.removesuffix(".gz")).suffix)
    if syntax is not None:
        return _read_skos(path, syntax, language)
    if language is not None:
        raise DatasetError(f"{path}: --label-language: expected a SKOS vocabulary, found TSV; omit the flag")
    return _read_tsv(path)


def clean_uri(uri: str) -> str:
    """Remove the angle brackets around a URI, which are optional."""
    return uri.removeprefix("<").removesuffix(">")


def _read_tsv(path: Path) -> Iterator[Subject]:
    for number, line in read_lines(path):
        columns = [column.strip() for column in line.split("\t", 2)]
        uri, name, notation = (columns + ["", ""])[:3]
        if not uri and any(columns):
            raise DatasetError(f"{path}:{number}: expected a URI, a tab and a name, found {line[:40]!r}")
        if name:
            yield Subject(clean_uri(uri), {"prefLabel": [name], "notation": [notation]}, f"{path}:{number}")


def _read_skos(path: Path, syntax: str, language: str | None) -> Iterator[Subject]:
    from rdflib import URIRef
    from rdflib.namespace import OWL, RDF, SKOS

    graph = _parse(path, syntax)
    concepts = sorted(
        concept
        for concept in set(graph.subjects(RDF.type, SKOS.Concept))
        if isinstance(concept, URIRef)  # rdflib gives a blank node another name each time
        and not any(value.toPython() is True for value in graph.objects(concept, OWL.deprecated))
    )
    if not concepts:
        raise DatasetError(f"{path}: expected instances of skos:Concept that are not deprecated, found none")
    language = _choose_language(graph, concepts, path, language)
    for concept in concepts:
        # An invalid vocabulary may have several preferred names in a language: one of them is enough.
        names = {
            "prefLabel": (_names(graph, concept, "prefLabel", language) or _names(graph, concept, "label", language))[
                :1
            ],
            "altLabel": _names(graph, concept, "altLabel", language),
            "notation": sorted(str(value) for value in graph.objects(concept, SKOS.notation)),
        }
        yield Subject(
            str(concept), names, f"{path}: concept {concept}" + (f", language {language}" if language else "")
        )


def _choose_language(graph: Any, concepts: list[Any], path: Path, language: str | None) -> str | None:
    """The language of the names; None if no name has a language."""
    from rdflib.namespace import RDFS, SKOS

    preferred = (graph.objects(each, kind) for each in concepts for kind in (SKOS.prefLabel, RDFS.label))
    found = sorted({name.language for name in itertools.chain(*preferred) if getattr(name, "language", None)})
    if language is None and len(found) < 2:
        return found[0] if found else None
    if language is None or language.lower() not in found:
        listed = ", ".join(found) or "names without a language"
        choose = "choose one with --label-language" if found else "omit the flag"
        asked = "one language" if language is None else f"names in {language!r}"
        raise DatasetError(f"{path}: expected {asked}, found {listed}; {choose}")
    return language.lower()


def _names(graph: Any, concept: Any, kind: str, language: str | None) -> list[str]:
    """The names of a concept in a language, sorted; if there are none, the names without a language."""
    from rdflib.namespace import RDFS, SKOS

    names: list[Any] = list(graph.objects(concept, RDFS.label if kind == "label" else SKOS[kind]))
    in_language = [str(name) for name in names if getattr(name, "language", None) == language]
    return sorted(in_language or [str(name) for name in names if getattr(name, "language", None) is None])


def _parse(path: Path, syntax: str) -> Any:
    """Read a vocabulary as an `rdflib.Graph`. The type is `Any`, because rdflib declares its nodes too widely."""
    import xml.sax

    import rdflib
    from rdflib.plugins.parsers.notation3 import BadSyntax

    content = "\n".join(line for _, line in read_lines(path))
    expected = "RDF/XML" if syntax == "xml" else "Turtle"
    # rdflib logs a traceback for each value with a wrong datatype, such as a date. No such value is used here.
    logging.getLogger("rdflib.term").setLevel(logging.ERROR)
    try:
        return rdflib.Graph().parse(data=content, format=syntax, publicID=path.absolute().as_uri())
    except BadSyntax as error:
        # `error.lines` counts some lines twice, so count them up to the place of the error.
        rest = content[error._i :].lstrip()
        line = content.count("\n", 0, len(content) - len(rest)) + 1
        raise DatasetError(f"{path}:{line}: expected {expected}, found: {error._why}, at {rest[:40]!r}") from None
    except xml.sax.SAXParseException as error:
        found = error.getMessage()
        raise DatasetError(f"{path}:{error.getLineNumber()}: expected {expected}, found: {found}") from None
    except Exception as error:  # for other wrong content, rdflib raises errors of many types
        found = f"{type(error).__name__}: {error}"[:200]
        raise DatasetError(f"{path}: expected {expected}, found: {found}; correct the file") from None
