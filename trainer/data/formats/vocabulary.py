"""Subject vocabularies of Annif: the subjects and their names, as TSV, CSV or SKOS.

    vocab.tsv | *-vocab.tsv        uri <TAB> name [<TAB> notation]; a subject without a name is deprecated
    vocab.csv | *-vocab.csv        a header with uri, label_LANGUAGE for each language, and optionally notation
    *.ttl | *.nt | *.rdf           SKOS in Turtle, N-Triples or RDF/XML: the instances of skos:Concept with a URI

All of them may end in `.gz`. A concept with `owl:deprecated true` is deprecated. A deprecated subject is not a label.
Names in SKOS-XL are read as those of SKOS. Subjects have these `LabelFields`: names, notation, and in SKOS also
parents, groups, and the further fields `scheme` (URIs) and `type` (the last parts of URIs).

A language matches the names with this tag, without case. If a subject has no such name, tags that extend it match: `en`
finds `en-GB`. If there is none either, names without a language match.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.core.system.files import find_files
from recollect.core.texts import is_blank
from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.lines import read_lines, read_table
from recollect.trainer.errors import DatasetError

FIELDS = ("prefLabel", "altLabel", "notation")

# rdflib's parser of Turtle also reads N-Triples, a part of Turtle, and its errors name the line.
_SKOS = {".ttl": "turtle", ".nt": "turtle", ".rdf": "xml"}
VOCABULARIES = ("vocab.tsv", "*-vocab.tsv", "vocab.csv", "*-vocab.csv", *(f"*{suffix}" for suffix in _SKOS))
# Vocabularies that other programs write.
NOT_READ = ("*.jsonld", "*.json-ld", "*.n3", "*.trig", "*.nq", "*.owl", "*.xml")
_XL = "http://www.w3.org/2008/05/skos-xl#"

_PREFERRED = ("prefLabel", "label")  # rdfs:label stands in for skos:prefLabel
_KINDS = (*_PREFERRED, "altLabel")
# A language as columns of CSV name it.
_LANGUAGE = re.compile(r"[A-Za-z0-9-]*")
# A longer name, in characters, is a text of a label, but no field.
_LONGEST_NAME = 1_000

# A reference to an entity that a file declares: not to a character, and not to one that XML itself declares.
_ENTITY_REFERENCE = re.compile(r"&(?!#|(?:amp|lt|gt|quot|apos);)")

# The language tag of a name in lower case, empty for a name without a language, and the name.
_Tagged = tuple[str, str]


@dataclass(frozen=True)
class Subject:
    """A subject of a vocabulary.

    Attributes:
        uri: Its URI, which is the uid of the label.
        names: Its names by field: `prefLabel` (at most one), `altLabel` and `notation`.
        where: File, and line or language, for error messages.
        others: The `LabelFields` besides the name and the notation.
    """

    uri: str
    names: dict[str, list[str]]
    where: str
    others: Mapping[str, Any]

    def fields(self, text: str) -> dict[str, Any]:
        """The `LabelFields` of a label with a text. A name that equals the text is left out."""
        name, notation = self.text(("prefLabel",)), self.names["notation"]
        own = {"name": name} if name not in ("", text) and len(name) <= _LONGEST_NAME else {}
        return own | ({"notation": notation[0]} if notation else {}) | {**self.others}

    def text(self, fields: tuple[str, ...]) -> str:
        """Join the names in these fields."""
        names = (name for field in fields for name in self.names.get(field, []))
        return "; ".join(dict.fromkeys(name for name in names if not is_blank(name)))


def find_matches(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files, and the folders of documents, whose names match one of the patterns, also with `.gz` at the end."""
    names = (f"{pattern}{gz}" for pattern in patterns for gz in ("", ".gz"))
    found = {path for name in names for path in find_files(folder, name)}
    return sorted(path for path in found if path.is_file() or find_files(path, "*.txt"))


def read_vocabulary(path: Path, rule: TextRule) -> Iterator[Subject]:
    """Yield the subjects of a vocabulary that are not deprecated: the rows of a table, or concepts sorted by URI.

    The rule gets the URIs of the deprecated ones.

    Raises:
        DatasetError: If the vocabulary is invalid, or does not have the language. The message names the file.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix in _SKOS:
        yield from _read_skos(path, _SKOS[suffix], rule)
    elif suffix == ".csv":
        yield from _read_csv(path, rule)
    elif rule.label_language is not None:
        raise DatasetError(f"{path}: --label-language: expected a vocabulary as SKOS or CSV, found TSV; omit the flag")
    else:
        yield from _read_tsv(path, rule)
    if rule.deprecated:
        rule.note(f"{path}: {len(rule.deprecated):,} subjects are deprecated; they are no labels")


def clean_uri(uri: str) -> str:
    """Remove the angle brackets around a URI, which are optional."""
    return uri.removeprefix("<").removesuffix(">")


def _read_tsv(path: Path, rule: TextRule) -> Iterator[Subject]:
    for number, line in read_lines(path):
        columns = [column.strip() for column in line.split("\t", 2)]
        uri, name, notation = (columns + ["", ""])[:3]
        if is_blank(line) or (number == 1 and uri.lower() == "uri"):  # a header, although Annif's TSV has none
            continue
        if not uri:
            raise DatasetError(f"{path}:{number}: expected a URI, a tab and a name, found {line[:40]!r}")
        uri = clean_uri(uri)
        if is_blank(name):
            rule.deprecated.add(uri)
        else:
            yield Subject(uri, {"prefLabel": [name], "notation": _not_blank(notation)}, f"{path}:{number}", {})


def _read_csv(path: Path, rule: TextRule) -> Iterator[Subject]:
    columns, language = dict[str, str](), None
    for number, row in read_table(path, ("uri",)):
        if number == 1:
            columns = {name: name.removeprefix("label").lstrip("_") for name in row if name.startswith("label")}
            if wrong := [name for name, tag in columns.items() if not _LANGUAGE.fullmatch(tag.replace("_", "-"))]:
                raise DatasetError(f"{path}: expected columns with a language, such as label_pt-BR, found {wrong[0]!r}")
            columns = {name: _normal(tag) for name, tag in columns.items()}
            language = _choose_language(columns.values(), path, rule.label_language)
        uri = clean_uri(row["uri"].strip())
        tagged = [(tag, row[name].strip()) for name, tag in columns.items() if not is_blank(row[name])]
        if not tagged:
            rule.deprecated.add(uri)
            continue
        names = {"prefLabel": _in_language(tagged, language)[:1], "notation": _not_blank(row.get("notation", ""))}
        where = f"{path}: row {number}" + (f", language {language}" if language else "")
        yield Subject(uri, names, where, {"names": _by_language(tagged)})


def _read_skos(path: Path, syntax: str, rule: TextRule) -> Iterator[Subject]:
    from rdflib.namespace import OWL, RDF, SKOS

    graph = _parse(path, syntax)
    deprecated = {subject for subject, value in graph.subject_objects(OWL.deprecated) if value.toPython() is True}
    found = {*_uris(graph.subjects(RDF.type, SKOS.Concept))}
    rule.deprecated.update(map(str, found & deprecated))
    concepts = sorted(found - deprecated)
    if not concepts:
        raise DatasetError(f"{path}: expected instances of skos:Concept that are not deprecated, found none")
    names = {kind: _names(graph, kind) for kind in _KINDS}
    preferred = [names[kind][concept] for kind in _PREFERRED for concept in concepts if concept in names[kind]]
    language = _choose_language((tag for tagged in preferred for tag, _ in tagged), path, rule.label_language)
    notations, schemes, types = (_objects(graph, each) for each in (SKOS.notation, SKOS.inScheme, RDF.type))
    parents, groups = _parents(graph, {*concepts}), _groups(graph, names, language)
    doubled = list[str]()
    for concept in concepts:
        of_concept = {kind: names[kind].get(concept, []) for kind in _KINDS}
        chosen = {kind: _in_language(tagged, language) for kind, tagged in of_concept.items()}
        doubled += _doubled(concept, of_concept["prefLabel"])
        of_text = {
            "prefLabel": (chosen["prefLabel"] or chosen["label"])[:1],
            "altLabel": chosen["altLabel"],
            "notation": sorted(str(value) for value in notations.get(concept, ()) if not is_blank(value)),
        }
        others = {
            "names": _by_language(of_concept["label"], of_concept["prefLabel"]),
            "parents": sorted(parents.get(concept, ())),
            "groups": sorted(groups.get(concept, ())),
            "scheme": sorted(map(str, _uris(schemes.get(concept, ())))),
            "type": sorted({_last_part(uri) for uri in _uris(types[concept]) if uri != SKOS.Concept}),
        }
        where = f"{path}: concept {concept}" + (f", language {language}" if language else "")
        yield Subject(str(concept), of_text, where, others)
    if doubled:
        rule.note(
            f"{path}: {len(doubled):,} concepts have several preferred names in a language; the first one by alphabet "
            f"counts (the first: {doubled[0]})"
        )


def _objects(graph: Any, predicate: Any) -> dict[Any, list[Any]]:
    """The objects of each subject. One pass is several times faster than a search for each concept."""
    found = defaultdict[Any, list[Any]](list)
    for subject, value in graph.subject_objects(predicate):
        found[subject].append(value)
    return found


def _parents(graph: Any, concepts: set[Any]) -> dict[Any, set[str]]:
    """The broader concepts of each concept, among some concepts."""
    from rdflib.namespace import SKOS

    found = defaultdict[Any, set[str]](set)
    narrower = ((concept, broader) for broader, concept in graph.subject_objects(SKOS.narrower))
    for concept, broader in (*graph.subject_objects(SKOS.broader), *narrower):
        if broader in concepts:
            found[concept].add(str(broader))
    return found


def _groups(graph: Any, names: Mapping[str, Mapping[Any, list[_Tagged]]], language: str | None) -> dict[Any, set[str]]:
    """The names of the collections of each concept, or the URIs of collections without a name."""
    from rdflib.namespace import SKOS

    found = defaultdict[Any, set[str]](set)
    for collection, members in _objects(graph, SKOS.member).items():
        tagged = next((each for kind in _PREFERRED if (each := names[kind].get(collection))), [])
        tagged = [(tag, name) for tag, name in sorted(tagged) if not is_blank(name)]
        called = [*_in_language(tagged, language), *(name for _, name in tagged), *map(str, _uris([collection]))][:1]
        for member in members:
            found[member].update(called)
    return found


def _doubled(concept: Any, tagged: list[_Tagged]) -> list[str]:
    """A message if a concept has several names in a language, as only an invalid vocabulary has."""
    by_tag = defaultdict[str, set[str]](set)
    for tag, name in tagged:
        by_tag[tag].add(name)
    several = (f"{concept}: {', '.join(map(repr, sorted(names)))}" for names in by_tag.values() if len(names) > 1)
    return [*several][:1]


def _by_language(*tagged: list[_Tagged]) -> dict[str, str]:
    """The first name in each language. Names of a later list stand before those of an earlier one."""
    ordered = (each for names in tagged for each in sorted(names, reverse=True))
    names = {tag: name for tag, name in ordered if tag and len(name) <= _LONGEST_NAME and not is_blank(name)}
    return dict(sorted(names.items()))


def _uris(nodes: Iterable[Any]) -> list[Any]:
    """The nodes with a URI. rdflib gives a blank node another name each time."""
    from rdflib import URIRef

    return [node for node in nodes if isinstance(node, URIRef)]


def _last_part(uri: str) -> str:
    """The last part of a URI: the name of a type without its namespace."""
    return re.split(r"[/#:]", uri.rstrip("/#:"))[-1]


def _not_blank(text: str) -> list[str]:
    return [] if is_blank(text) else [text.strip()]


def _choose_language(tags: Iterable[str], path: Path, language: str | None) -> str | None:
    """The language of the names; None if no name has a language."""
    found = sorted(set(filter(None, tags)))
    if language is None and len(found) < 2:
        return found[0] if found else None
    if language is None or not any(_matches(tag, _normal(language)) for tag in found):
        listed = ", ".join(found) or "names without a language"
        choose = "choose one with --label-language" if found else "omit the flag"
        asked = "one language" if language is None else f"names in {language!r}"
        raise DatasetError(f"{path}: expected {asked}, found {listed}; {choose}")
    return _normal(language)


def _normal(tag: str) -> str:
    return tag.lower().replace("_", "-")


def _matches(tag: str, language: str) -> bool:
    return tag == language or tag.startswith(f"{language}-")


def _in_language(names: list[_Tagged], language: str | None) -> list[str]:
    """The names with the tag of a language; if there are none, those with longer tags, then those without a tag."""
    exact = sorted(name for tag, name in names if tag == language)
    longer = [name for tag, name in sorted(names) if language and _matches(tag, language)]
    return exact or longer or sorted(name for tag, name in names if not tag)


def _names(graph: Any, kind: str) -> dict[Any, list[_Tagged]]:
    """The names of all subjects in all languages, also those in SKOS-XL."""
    from rdflib import URIRef
    from rdflib.namespace import RDFS, SKOS

    found = _objects(graph, RDFS.label if kind == "label" else SKOS[kind])
    for subject, label in graph.subject_objects(URIRef(_XL + kind)):
        found[subject] += graph.objects(label, URIRef(f"{_XL}literalForm"))
    return {
        subject: [(_normal(getattr(name, "language", None) or ""), str(name)) for name in names]
        for subject, names in found.items()
    }


def _parse(path: Path, syntax: str) -> Any:
    """Read a vocabulary as an `rdflib.Graph`. The type is `Any`, because rdflib declares its nodes too widely."""
    import xml.sax

    import rdflib
    from rdflib.plugins.parsers.notation3 import BadSyntax

    content = "\n".join(line for _, line in read_lines(path))
    expected = "RDF/XML" if syntax == "xml" else "Turtle"
    # rdflib logs a traceback for each value with a wrong datatype, such as a date. No such value is used here.
    logging.getLogger("rdflib.term").setLevel(logging.ERROR)
    if syntax == "xml":
        _refuse_nested_entities(path, content)
    try:
        source = rdflib.parser.create_input_source(data=content, format=syntax, publicID=path.absolute().as_uri())
        return _parse_xml(source) if syntax == "xml" else rdflib.Graph().parse(source, format=syntax)
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


def _parse_xml(source: Any) -> Any:
    """Read RDF/XML as an `rdflib.Graph`. Of an XML literal, only the text is read.

    The parser passes each line and each entity of a text on as one piece. For each piece, rdflib would copy the text so
    far, and for each element of an XML literal parse it: a file of 25 kB could take a minute. So the pieces are joined
    before rdflib gets them, and the elements are left out.
    """
    from xml.sax.saxutils import XMLFilterBase
    from xml.sax.xmlreader import AttributesNSImpl

    import rdflib
    from rdflib.plugins.parsers.rdfxml import create_parser

    kind = (str(rdflib.RDF), "parseType")

    class JoinedText(XMLFilterBase):
        pieces = list[str]()
        literal_depth = 0  # number of open elements from the one with the XML literal on

        def characters(self, content: str) -> None:
            self.pieces.append(content)

        def startElementNS(self, name: Any, qname: Any, attributes: Any) -> None:  # noqa: N802
            if self.literal_depth or attributes.get(kind, "Resource") not in ("Resource", "Collection"):
                self.literal_depth += 1
                others = {each: value for each, value in attributes.items() if each != kind}
                attributes = AttributesNSImpl(others, {})
            if self.literal_depth < 2:
                self._pass_on()
                super().startElementNS(name, qname, attributes)

        def endElementNS(self, *args: Any) -> None:  # noqa: N802
            if self.literal_depth < 2:
                self._pass_on()
                super().endElementNS(*args)
            self.literal_depth = max(0, self.literal_depth - 1)

        def _pass_on(self) -> None:
            if self.pieces:
                super().characters("".join(self.pieces))
                self.pieces.clear()

    graph = rdflib.Graph()
    parser = create_parser(source, graph)
    joined = JoinedText(parser)
    joined.setContentHandler(parser.getContentHandler())
    joined.setErrorHandler(parser.getErrorHandler())
    joined.parse(source)
    return graph


def _refuse_nested_entities(path: Path, content: str) -> None:
    """Refuse XML with an entity that refers to entities: rdflib would expand a few of them to millions of texts.

    Entities for namespaces, as editors of ontologies write them, refer to none.
    """
    from xml.parsers import expat

    def declared(name: str, is_parameter: int, value: str | None, *_: str | None) -> None:
        if is_parameter or _ENTITY_REFERENCE.search(value or ""):
            raise DatasetError(
                f"{path}: expected XML entities that refer to no entities, found {name!r}; write its text in its place"
            )

    def begun(*_: object) -> None:
        raise StopIteration

    parser = expat.ParserCreate()
    parser.EntityDeclHandler, parser.StartElementHandler = declared, begun
    with contextlib.suppress(StopIteration, expat.ExpatError):  # of other faults, rdflib tells the line
        parser.Parse(content, True)
