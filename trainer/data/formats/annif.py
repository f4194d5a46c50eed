"""Annif's corpora: texts with the URIs of their subjects, and a subject vocabulary.

    train.tsv | *-train.tsv    test.tsv | *-test.tsv      text <TAB> uri uri ...
    train.csv | *-train.csv    test.csv | *-test.csv      a header with text and subject_uris
    train/    | *-train/       test/    | *-test/         NAME.txt with NAME.tsv (uri <TAB> name) or NAME.key (names)
    the subjects                                          see `recollect.trainer.data.formats.vocabulary`

The files may end in `.gz`. The angle brackets around a URI are optional. The text of a label is the preferred name of
its subject, unless `--text-fields` names other fields. The uid of an instance is its row number, from 0.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from recollect.core.bundle.label_fields import from_json, name_of
from recollect.core.system.files import find_files
from recollect.core.texts import is_blank
from recollect.trainer.data.formats.fields import TextRule, label_fields
from recollect.trainer.data.formats.lines import read_lines, read_table
from recollect.trainer.data.formats.references import LabelReferences
from recollect.trainer.data.formats.vocabulary import (
    FIELDS,
    NOT_READ,
    VOCABULARIES,
    clean_uri,
    find_matches,
    read_vocabulary,
)
from recollect.trainer.data.split import Entries, LabelColumns, Split, SplitBuilder, SplitName
from recollect.trainer.errors import DatasetError

EXPECTED = "vocab.tsv, vocab.csv or a SKOS file (.ttl, .nt, .rdf), and train.tsv[.gz], train.csv[.gz] or train/"
TEXT_FIELDS: tuple[str, ...] = FIELDS[:1]

# The first row of a file that has a header, although Annif's TSV has none.
_HEADER = {"uri", "uris", "subject", "subjects", "subject_uri", "subject_uris"}


class _Row(NamedTuple):
    where: str
    text: str
    uris: list[str]


def recognises(folder: Path) -> bool:
    return any(find_matches(folder, patterns) for patterns in (VOCABULARIES, _patterns("train"), _patterns("test")))


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    if not find_matches(folder, VOCABULARIES) and (other := find_matches(folder, NOT_READ)):
        raise DatasetError(
            f"{other[0]}: expected a vocabulary as TSV, CSV, Turtle, N-Triples or RDF/XML; convert it, for example by "
            "rdfpipe -o turtle"
        )
    path = _only(folder, VOCABULARIES)
    if wrong := [field for field in rule.fields if field not in FIELDS]:
        raise DatasetError(f"{path}: --text-fields: expected {', '.join(FIELDS)}, found {', '.join(wrong)}")
    labels = LabelColumns()
    for subject in read_vocabulary(path, rule):
        rule.seen.update(field for field, names in subject.names.items() if any(names))
        uri = rule.check(subject.uri, f"{path}: URI of a concept")
        text = rule.check(subject.text(rule.fields or TEXT_FIELDS), subject.where)
        labels.append(uri, text, label_fields(subject.fields(text), subject.where))
    rule.require_seen(path)
    return path, labels.build()


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    path = _only(folder, _patterns(name))
    references, split = LabelReferences(labels, path, rule), SplitBuilder()
    if path.is_dir():
        rows = _read_documents(path, _NamedSubjects(labels, rule))
    else:
        rows = _read_csv(path) if ".csv" in path.suffixes else _read_tsv(path)
    for where, text, uris in rows:
        split.append(str(len(split)), rule.check(text, where), references.find(uris, "subjects", where))
    references.report()
    return path, split.build()


def _read_tsv(path: Path) -> Iterator[_Row]:
    for number, line in read_lines(path):
        if is_blank(line):
            continue
        text, tab, uris = line.partition("\t")
        if not tab:
            raise DatasetError(f"{path}:{number}: expected a text, a tab and URIs, found no tab in {line[:40]!r}")
        if number > 1 or uris.strip().lower() not in _HEADER:
            yield _Row(f"{path}:{number}", text, [clean_uri(uri) for uri in uris.split()])


def _read_csv(path: Path) -> Iterator[_Row]:
    for number, row in read_table(path, ("text", "subject_uris")):
        yield _Row(f"{path}: row {number}", row["text"], [clean_uri(uri) for uri in row["subject_uris"].split()])


class _NamedSubjects:
    """Finds subjects by their preferred names, the names of the labels."""

    def __init__(self, labels: Entries, rule: TextRule) -> None:
        self._labels, self._rule = labels, rule
        self._shared: dict[str, list[str]] = {}

    def uri(self, name: str) -> str:
        """The URI of the subject with a preferred name, the first one of several; an unknown name itself."""
        uris = self._uris.get(name, [name])
        if len(uris) > 1:
            self._shared[name] = uris
        return uris[0]

    def report(self, path: Path) -> None:
        """Report the names that several subjects have."""
        if self._shared:
            name, uris = next(iter(self._shared.items()))
            self._rule.note(
                f"{path}: {len(self._shared):,} names in .key files belong to several subjects; each stands for the "
                f"first of them (for example {name!r}: {', '.join(uris)}); write URIs in .tsv files instead"
            )

    @functools.cached_property
    def _uris(self) -> dict[str, list[str]]:
        found = defaultdict[str, list[str]](list)
        for name, uri in self._names():
            if not is_blank(name) and uri not in found[name.strip()]:
                found[name.strip()].append(uri)
        return {name: sorted(uris) for name, uris in found.items()}

    def _names(self) -> Iterator[tuple[str, str]]:
        uids, texts = self._labels.uids.to_pylist(), self._labels.texts.to_pylist()
        if self._labels.fields is None:
            return zip(texts, uids, strict=True)
        rows = zip(self._labels.fields.to_pylist(), texts, uids, strict=True)
        return ((name_of(from_json(fields), text), uid) for fields, text, uid in rows)


def _read_documents(folder: Path, subjects_by_name: _NamedSubjects) -> Iterator[_Row]:
    """The texts of a folder with their subjects, which a file of the same name lists by URI or by name."""
    for path in find_files(folder, "*.txt"):
        subjects, named = path.with_suffix(".tsv"), path.with_suffix(".key")
        if subjects.is_file():
            found = [clean_uri(line.split("\t")[0].strip()) for _, line in read_lines(subjects) if not is_blank(line)]
        elif named.is_file():
            found = [subjects_by_name.uri(line.strip()) for _, line in read_lines(named) if not is_blank(line)]
        else:
            raise DatasetError(f"{path}: expected its subjects in {subjects.name} or {named.name}, found neither")
        yield _Row(str(path), "\n".join(line for _, line in read_lines(path)), found)
    subjects_by_name.report(folder)


def _patterns(name: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}{suffix}" for suffix in (".tsv", ".csv", "") for prefix in ("", "*-"))


def _only(folder: Path, patterns: tuple[str, ...]) -> Path:
    """The only file that matches a pattern."""
    found = find_matches(folder, patterns)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DatasetError(f"{folder}: expected one file named {', '.join(patterns)} (also .gz), found {names}")
    return found[0]
