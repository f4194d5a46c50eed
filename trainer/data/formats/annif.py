"""Annif's corpora: short texts with the URIs of their subjects, and a subject vocabulary.

    train.tsv | *-train.tsv    test.tsv | *-test.tsv      text <TAB> uri uri ...
    vocab.tsv | *-vocab.tsv | *.ttl | *.nt | *.rdf        the subjects; see `recollect.trainer.data.formats.vocabulary`

All of them may end in `.gz`. The angle brackets around a URI are optional. The text of a label is the preferred name of
its subject, unless `--text-fields` names other fields. The uid of an instance is its row number, from 0.
"""

from __future__ import annotations

from pathlib import Path

from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.lines import read_lines
from recollect.trainer.data.formats.references import LabelReferences
from recollect.trainer.data.formats.vocabulary import (
    FIELDS,
    clean_uri,
    find_matches,
    find_vocabularies,
    read_vocabulary,
)
from recollect.trainer.data.split import Entries, Split, SplitBuilder, SplitName, StringColumn
from recollect.trainer.errors import DatasetError

EXPECTED = "vocab.tsv or a SKOS file (.ttl, .nt, .rdf), and train.tsv[.gz]"
TEXT_FIELDS: tuple[str, ...] = FIELDS[:1]


def recognises(folder: Path) -> bool:
    return bool(find_vocabularies(folder) or any(find_matches(folder, _patterns(name)) for name in ("train", "test")))


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    path = _only(folder, find_vocabularies(folder), "vocab.tsv, *-vocab.tsv, *.ttl, *.nt or *.rdf")
    if wrong := [field for field in rule.fields if field not in FIELDS]:
        raise DatasetError(f"{path}: --text-fields: expected {', '.join(FIELDS)}, found {', '.join(wrong)}")
    uids, texts = StringColumn(), StringColumn()
    for subject in read_vocabulary(path, rule.label_language):
        uids.append(rule.check(subject.uri, f"{path}: URI of a concept"))
        texts.append(rule.check(subject.text(rule.fields or TEXT_FIELDS), subject.where))
    return path, Entries(uids.build(), texts.build())


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    path = _only(folder, find_matches(folder, _patterns(name)), " or ".join(_patterns(name)))
    references, split = LabelReferences(labels, path, rule), SplitBuilder()
    for number, line in read_lines(path):
        if not line.strip():
            continue
        text, tab, subjects = line.partition("\t")
        if not tab:
            raise DatasetError(f"{path}:{number}: expected a text, a tab and URIs, found no tab in {line[:40]!r}")
        uris = [clean_uri(uri) for uri in subjects.split()]
        split.append(str(len(split)), rule.check(text, f"{path}:{number}"), references.find(uris, "subjects", number))
    references.report()
    return path, split.build()


def _patterns(name: str) -> tuple[str, ...]:
    return f"{name}.tsv", f"*-{name}.tsv"


def _only(folder: Path, found: list[Path], expected: str) -> Path:
    """The only file that was found."""
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DatasetError(f"{folder}: expected one file named {expected} (also .gz), found {names}")
    return found[0]
