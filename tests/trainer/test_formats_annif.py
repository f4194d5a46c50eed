"""Annif's corpora: short texts as TSV, and subject vocabularies as TSV and SKOS."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect.core.bundle.label_fields import from_json
from recollect.trainer.data.dataset import FORMATS, open_dataset
from recollect.trainer.errors import DatasetError
from tests.trainer.helpers import label_lists

WriteLines = Callable[..., Path]

CATS, DOGS, OLD = (f"http://example.org/{name}" for name in ("cats", "dogs", "old"))
TSV = [f"<{DOGS}>\tdogs\t59.2", f"<{CATS}>\tcats", f"<{OLD}>"]
TURTLE = f"""\
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
<{DOGS}> a skos:Concept ;
    skos:prefLabel "dogs"@en, "koirat"@fi ;
    skos:altLabel "domestic dogs"@en, "canines"@en, "hauvat"@fi ;
    skos:notation "59.2" .
<{CATS}> a skos:Concept ; rdfs:label "cats" ; skos:prefLabel "kissat"@fi .
<{OLD}> a skos:Concept ; owl:deprecated true ; skos:prefLabel "old"@en .
<http://example.org/animals> a skos:Collection ; skos:prefLabel "animals"@en ; skos:member <{DOGS}> .
"""
RDF_XML = f"""\
<?xml version="1.0" encoding="utf-8"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="http://www.w3.org/2004/02/skos/core#">
  <skos:Concept rdf:about="{DOGS}"><skos:prefLabel xml:lang="en">dogs</skos:prefLabel></skos:Concept>
  <skos:Concept rdf:about="{CATS}"><skos:prefLabel xml:lang="en">cats</skos:prefLabel></skos:Concept>
</rdf:RDF>
"""


@pytest.fixture
def folder(tmp_path: Path, write_lines: WriteLines) -> Path:
    write_lines(tmp_path / "vocab.tsv", TSV)
    write_lines(
        tmp_path / "train.tsv", [f"My \u201cbest\u201d friend\t<{DOGS}> <{CATS}>", "", f"a purr\t{CATS}", "none\t"]
    )
    write_lines(tmp_path / "test.tsv.gz", [f"bark\t{DOGS}"])
    return tmp_path


def use_skos(folder: Path, content: str = TURTLE, name: str = "pets-skos.ttl") -> Path:
    (folder / "vocab.tsv").unlink(missing_ok=True)
    (folder / name).write_text(content)
    return folder


def test_texts_and_subjects_are_instances_and_labels(folder: Path) -> None:
    dataset = open_dataset(folder)
    assert dataset.format is FORMATS["annif"]
    assert dataset.labels.uids.to_pylist() == [DOGS, CATS]
    assert dataset.labels.texts.to_pylist() == ["dogs", "cats"]
    train, test = dataset.read_split("train"), dataset.read_split("test")
    assert train.entries.texts.to_pylist() == ["My \u201cbest\u201d friend", "a purr", "none"]
    assert train.labels.to_csr(2).toarray().tolist() == [[1, 1], [0, 1], [0, 0]]
    assert test.labels.to_csr(2).toarray().tolist() == [[1, 0]]


@pytest.mark.parametrize(("before", "after"), [("train.tsv", "pets-train.tsv"), ("vocab.tsv", "pets-vocab.tsv")])
def test_names_may_have_a_prefix(folder: Path, before: str, after: str) -> None:
    (folder / before).rename(folder / after)
    assert len(open_dataset(folder).read_split("train")) == 3


@pytest.mark.parametrize("vocabulary", ["tsv", "skos"])
@pytest.mark.parametrize(
    ("uri", "refused", "dropped"),
    [
        (OLD, "is deprecated in the vocabulary", " (2 of them deprecated)"),
        ("http://example.org/unknown", "is unknown", ""),
    ],
    ids=["deprecated", "unknown"],
)
def test_subject_that_is_not_a_label_is_refused_or_dropped_with_a_note(
    folder: Path, write_lines: WriteLines, uri: str, refused: str, dropped: str, vocabulary: str
) -> None:
    language, name = (None, "vocab.tsv") if vocabulary == "tsv" else ("en", "pets-skos.ttl")
    if vocabulary == "skos":
        use_skos(folder)
    write_lines(folder / "train.tsv", [f"one\t{CATS}", f"two\t<{uri}> <{DOGS}> {uri}"])
    with pytest.raises(DatasetError, match=rf"train\.tsv:2: label uid '{uri}' {refused}; .* --unknown-labels drop$"):
        open_dataset(folder, label_language=language).read_split("train")
    notes = list[str]()
    dataset = open_dataset(folder, label_language=language, unknown_labels="drop", note=notes.append)
    row = dataset.labels.uids.to_pylist().index(DOGS)
    assert dataset.read_split("train").labels.to_csr(2).toarray()[1].nonzero()[0].tolist() == [row]
    assert notes == [
        f"{folder}/{name}: 1 subjects are deprecated; they are no labels",
        f"{folder}/train.tsv: 2 names of labels are unknown{dropped}; they are dropped "
        f"(the first: {folder}/train.tsv:2: {uri})",
    ]


def test_skos_concepts_have_their_preferred_name_in_a_language_or_the_name_without_one(folder: Path) -> None:
    use_skos(folder)
    english, finnish = (open_dataset(folder, label_language=language).labels for language in ("en", "FI"))
    assert english.uids.to_pylist() == [CATS, DOGS]
    assert english.texts.to_pylist() == ["cats", "dogs"]
    assert finnish.texts.to_pylist() == ["kissat", "koirat"]


def test_alternative_names_and_notation_extend_the_text_of_a_label(folder: Path) -> None:
    fields = ("prefLabel", "altLabel", "notation")
    assert open_dataset(folder, text_fields=("notation", "prefLabel")).labels.texts.to_pylist() == [
        "59.2; dogs",
        "cats",
    ]
    with pytest.raises(DatasetError, match=r"no record has the field altLabel; found notation, prefLabel"):
        open_dataset(folder, text_fields=fields)
    labels = open_dataset(use_skos(folder), label_language="en", text_fields=fields).labels
    assert labels.texts.to_pylist() == ["cats", "dogs; canines; domestic dogs; 59.2"]


def fields_of(folder: Path, **flags: Any) -> dict[str, dict[str, Any]]:
    """The fields of each label, by the last part of its uid."""
    labels = open_dataset(folder, **flags).labels
    texts = [""] * len(labels) if labels.fields is None else labels.fields.to_pylist()
    uids = [uid.rpartition("/")[2] for uid in labels.uids.to_pylist()]
    return dict(zip(uids, map(from_json, texts), strict=True))


SKOS_FIELDS = f"""\
<http://example.org/animals> a skos:Concept ; skos:prefLabel "animals"@en ;
    skos:narrower <{CATS}> , <http://example.org/unlisted> .
<{DOGS}> skos:broader <http://example.org/animals> , <{OLD}> , <http://example.org/unlisted> ;
    skos:notation "636.7"^^<http://example.org/UDC> ; skos:inScheme <http://example.org/pets> , [] ;
    a <http://example.org/meta#Species> .
<http://example.org/home> a skos:Collection ; skos:prefLabel "at home"@en , "kotona"@fi ;
    skos:member <{DOGS}> , <{CATS}> .
<http://example.org/nameless> a skos:Collection ; skos:member <{DOGS}> , <{OLD}> .
[] a skos:Collection ; skos:member <{DOGS}> .
"""


def test_skos_has_names_notation_parents_groups_scheme_and_type_of_a_label(folder: Path) -> None:
    use_skos(folder, TURTLE + SKOS_FIELDS)
    flags = {"label_language": "en", "text_fields": ("prefLabel", "altLabel")}
    dogs = {
        "name": "dogs",
        "names": {"en": "dogs", "fi": "koirat"},
        "notation": "59.2",
        "parents": ["http://example.org/animals"],
        "groups": ["animals", "at home", "http://example.org/nameless"],
        "scheme": ["http://example.org/pets"],
        "type": ["Species"],
    }
    cats = {"names": {"fi": "kissat"}, "parents": ["http://example.org/animals"], "groups": ["at home"]}
    animals = {"names": {"en": "animals"}, "type": ["Collection"]}
    assert fields_of(folder, **flags) == {"animals": animals, "cats": cats, "dogs": dogs}
    finnish = fields_of(folder, label_language="fi", empty_texts="keep")
    assert finnish["dogs"]["groups"] == ["animals", "http://example.org/nameless", "kotona"]
    assert "name" not in finnish["dogs"]  # its text is its name
    assert finnish["animals"]["names"] == {"en": "animals"}


def test_tables_have_notation_and_names_of_a_label(folder: Path, write_lines: WriteLines) -> None:
    assert fields_of(folder) == {"dogs": {"notation": "59.2"}, "cats": {}}
    (folder / "vocab.tsv").unlink()
    write_lines(folder / "vocab.csv", ["uri,label_en,label_pt_BR,notation", f"{DOGS},dogs,,59.2", f"{CATS},,gatos,"])
    with pytest.raises(DatasetError, match=r"vocab\.csv: row 2, language en: the text is empty"):
        open_dataset(folder, label_language="en")
    expected = {"dogs": {"names": {"en": "dogs"}, "notation": "59.2"}, "cats": {"names": {"pt-br": "gatos"}}}
    assert fields_of(folder, label_language="en", empty_texts="keep") == expected
    write_lines(folder / "vocab.csv", ["uri,label_en us", f"{DOGS},dogs"])
    with pytest.raises(DatasetError, match=r"expected columns with a language, such as label_pt-BR, found 'label_en u"):
        open_dataset(folder)


def test_invalid_fields_of_skos_are_one_note_or_one_message(folder: Path) -> None:
    notes = list[str]()
    use_skos(folder, TURTLE + f'<{DOGS}> skos:prefLabel "hounds"@en ; skos:broader <{CATS}> , <{DOGS}> .\n')
    assert open_dataset(folder, label_language="en", note=notes.append).labels.texts.to_pylist() == ["cats", "dogs"]
    assert [note.removeprefix(f"{folder}/pets-skos.ttl: ") for note in notes[::2]] == [
        "1 concepts have several preferred names in a language; the first one by alphabet counts "
        f"(the first: {DOGS}: 'dogs', 'hounds')",
        f"expected parents without a cycle, found {DOGS!r} < {DOGS!r}; each of these labels is below the others",
    ]
    use_skos(folder, TURTLE + f'<{DOGS}> skos:prefLabel "x"@x-{"-a" * 20} .'.replace("--", "-"))
    with pytest.raises(
        DatasetError, match=rf"concept {DOGS}, language en: names\.x-a.*: String should have at most 35"
    ):
        open_dataset(folder, label_language="en")


@pytest.mark.parametrize("name", ["vocab.rdf", "vocab.rdf.gz"])
def test_rdf_xml_in_one_language_needs_no_language(folder: Path, name: str) -> None:
    use_skos(folder, RDF_XML, "vocab.rdf")
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress((folder / "vocab.rdf").read_bytes()))
        (folder / "vocab.rdf").unlink()
    assert open_dataset(folder).labels.texts.to_pylist() == ["cats", "dogs"]


def rdf_xml_with(entities: str, name: str) -> str:
    """A vocabulary that declares entities, with this name in the place of `dogs`."""
    return RDF_XML.replace("<rdf:RDF", f"<!DOCTYPE r [{entities}]><rdf:RDF", 1).replace(">dogs<", f">{name}<")


@pytest.mark.parametrize("name", ["vocab.rdf", "vocab.rdf.gz"])
@pytest.mark.parametrize("depth", [1, 9])
@pytest.mark.parametrize("reference", ["&a0;", "&#38;a0;"], ids=["plain", "escaped"])
def test_xml_entities_that_refer_to_entities_are_refused_before_they_are_expanded(
    folder: Path, name: str, depth: int, reference: str
) -> None:
    nested = "".join(
        f'<!ENTITY a{number} "{reference.replace("0", str(number - 1)) * 10}">' for number in range(1, depth + 1)
    )
    entities = f'<!ENTITY a0 "aaaaaaaaaa">{nested}'
    use_skos(folder, rdf_xml_with(entities, f"&a{depth};"), "vocab.rdf")
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress((folder / "vocab.rdf").read_bytes()))
        (folder / "vocab.rdf").unlink()
    with pytest.raises(DatasetError, match=f"{name}: expected XML entities that refer to no entities, found 'a1'"):
        open_dataset(folder)


def test_xml_entities_for_namespaces_and_characters_are_read(folder: Path) -> None:
    entities = '<!ENTITY base "https://example.org/"><!ENTITY both "&#38;lt;&#233;&amp;&gt;">'
    use_skos(folder, rdf_xml_with(entities, "&both;&base;"), "vocab.rdf")
    assert open_dataset(folder).labels.texts.to_pylist() == ["cats", "<é&>https://example.org/"]


def test_name_of_thousands_of_entities_and_lines_is_read(folder: Path) -> None:
    use_skos(folder, rdf_xml_with(f'<!ENTITY a "{"a" * 1_000}">', "&a;\n" * 7_000), "vocab.rdf")
    assert open_dataset(folder).labels.texts.to_pylist() == ["cats", ("a" * 1_000 + "\n") * 7_000]


def test_xml_literal_is_read_as_its_text(folder: Path) -> None:
    vocabulary = rdf_xml_with("", "a &lt;<b>bold<i>er</i></b>" + " <b>dog</b>" * 1_000)
    literal = vocabulary.replace(">a &lt;", ' rdf:parseType="Literal">a &lt;')
    assert literal != vocabulary
    use_skos(folder, literal, "vocab.rdf")
    assert open_dataset(folder).labels.texts.to_pylist() == ["cats", "a <bolder" + " dog" * 1_000]


def test_turtle_may_begin_with_a_byte_order_mark_and_have_blank_nodes_and_wrong_dates(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = '[] a skos:Concept ; skos:prefLabel "x"@en ; rdfs:seeAlso "x"^^<http://www.w3.org/2001/XMLSchema#date> .\n'
    use_skos(folder, f"\ufeff{TURTLE}{extra}")
    assert open_dataset(folder, label_language="en").labels.uids.to_pylist() == [CATS, DOGS]
    assert not caplog.records


def test_concept_without_a_name_in_the_language_has_an_empty_text(folder: Path) -> None:
    use_skos(folder, TURTLE.replace('rdfs:label "cats" ; ', ""))
    with pytest.raises(DatasetError, match=rf"pets-skos\.ttl: concept {CATS}, language en: the text is empty; .*drop"):
        open_dataset(folder, label_language="en")
    dataset = open_dataset(folder, label_language="en", empty_texts="drop")
    assert dataset.labels.uids.to_pylist() == [DOGS]
    assert dataset.read_split("train").labels.to_csr(1).toarray().tolist() == [[1], [0], [0]]


@pytest.mark.parametrize(
    ("language", "message"),
    [
        (None, r"pets-skos\.ttl: expected one language, found en, fi; choose one with --label-language"),
        ("de", r"pets-skos\.ttl: expected names in 'de', found en, fi; choose one with --label-language"),
    ],
)
def test_language_must_be_one_of_the_vocabulary(folder: Path, language: str | None, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        open_dataset(use_skos(folder), label_language=language)


REGIONS = f"""\
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
<{CATS}> a skos:Concept ; skos:prefLabel "cats"@en-GB, "felines"@en, "gatos"@pt-BR, "\u732b"@zh-Hans .
<{DOGS}> a skos:Concept ; skos:prefLabel "dogs"@EN-gb, "perritos"@pt-PT, "cachorros"@PT-br, "\u72d7"@zh-Hant .
"""


@pytest.mark.parametrize(
    ("language", "names"),
    [
        ("EN-gb", ["cats", "dogs"]),
        ("en_GB", ["cats", "dogs"]),
        ("en", ["felines", "dogs"]),
        ("pt-br", ["gatos", "cachorros"]),
        ("PT", ["gatos", "cachorros"]),
        ("zh", ["\u732b", "\u72d7"]),
    ],
)
def test_language_matches_without_case_and_by_its_beginning(folder: Path, language: str, names: list[str]) -> None:
    assert open_dataset(use_skos(folder, REGIONS), label_language=language).labels.texts.to_pylist() == names


def test_names_in_skos_xl_are_read(folder: Path) -> None:
    content = f"""\
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix xl: <http://www.w3.org/2008/05/skos-xl#> .
<{CATS}> a skos:Concept ; skos:prefLabel "cats"@en ; xl:altLabel [ xl:literalForm "felines"@en ] .
<{DOGS}> a skos:Concept ; xl:prefLabel <http://example.org/label> , [ xl:literalForm "koirat"@fi ] .
<http://example.org/label> a xl:Label ; xl:literalForm "dogs"@en .
"""
    dataset = open_dataset(use_skos(folder, content), label_language="en", text_fields=("prefLabel", "altLabel"))
    assert dataset.labels.texts.to_pylist() == ["cats; felines", "dogs"]


@pytest.mark.parametrize(
    ("language", "names"), [("FI", ["koirat", "kissat"]), ("en", ["dogs, all", "cats"]), (None, None)]
)
def test_csv_vocabulary_has_names_in_several_languages(
    folder: Path, write_lines: WriteLines, language: str | None, names: list[str] | None
) -> None:
    (folder / "vocab.tsv").unlink()
    rows = [f'{DOGS},"dogs, all",koirat,59.2', f"<{CATS}>,cats,kissat,", f"{OLD},,,"]
    write_lines(folder / "pets-vocab.csv", ["uri,label_en-US,label_fi,notation", *rows])
    if names is None:
        with pytest.raises(DatasetError, match="expected one language, found en-us, fi; choose one"):
            open_dataset(folder)
        return
    labels = open_dataset(folder, label_language=language).labels
    assert (labels.uids.to_pylist(), labels.texts.to_pylist()) == ([DOGS, CATS], names)


def test_csv_corpus_is_read(folder: Path, write_lines: WriteLines) -> None:
    (folder / "train.tsv").unlink()
    rows = ["document_id,text,subject_uris", f'a,"bark, ""loud""",<{DOGS}> {CATS}', "", "b,none,"]
    write_lines(folder / "train.csv", rows)
    train = open_dataset(folder).read_split("train")
    assert train.entries.texts.to_pylist() == ['bark, "loud"', "none"]
    assert train.labels.to_csr(2).toarray().tolist() == [[1, 1], [0, 0]]
    write_lines(folder / "train.csv", ["text,uris"])
    with pytest.raises(DatasetError, match=r"train\.csv: expected a header with text, subject_uris, found text, uris"):
        open_dataset(folder).read_split("train")


def test_header_of_a_tsv_file_is_no_row(folder: Path, write_lines: WriteLines) -> None:
    write_lines(folder / "vocab.tsv", ["uri\tlabel\tnotation", *TSV])
    write_lines(folder / "train.tsv", ["text\tsubject_uris", f"bark\t{DOGS}"])
    dataset = open_dataset(folder)
    assert dataset.labels.uids.to_pylist() == [DOGS, CATS]
    assert dataset.read_split("train").entries.texts.to_pylist() == ["bark"]


def test_folder_of_full_texts_is_read_with_subjects_by_uri_or_by_name(folder: Path, write_lines: WriteLines) -> None:
    (folder / "train.tsv").unlink()
    write_lines(folder / "train" / "b.txt", ["A purr,", "at night"])
    write_lines(folder / "train" / "b.tsv", [f"<{CATS}>\tcats", f"{DOGS}\tdogs\tmore"])
    write_lines(folder / "train" / "a.txt", ["Bark"])
    write_lines(folder / "train" / "a.key", ["dogs"])
    dataset = open_dataset(folder)
    train = dataset.read_split("train")
    assert train.entries.texts.to_pylist() == ["Bark", "A purr,\nat night"]
    assert train.labels.to_csr(2).toarray().tolist() == [[1, 0], [1, 1]]
    write_lines(folder / "train" / "a.key", ["wolves"])
    with pytest.raises(DatasetError, match=r"train/a\.txt: label uid 'wolves' is unknown"):
        dataset.read_split("train")
    (folder / "train" / "a.key").unlink()
    with pytest.raises(DatasetError, match=r"a\.txt: expected its subjects in a\.tsv or a\.key, found neither"):
        dataset.read_split("train")


@pytest.mark.parametrize("name", ["pets.jsonld", "pets.n3", "pets.owl.gz"])
def test_vocabulary_in_another_syntax_is_refused_by_its_name(folder: Path, name: str) -> None:
    (folder / "vocab.tsv").rename(folder / name)
    with pytest.raises(DatasetError, match=rf"/{name}: expected a vocabulary as TSV, CSV, .*; convert it, for example"):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.ttl", b"<http://a> a\n\n oops .", r"a\.ttl:3: expected Turtle, found: "),
        ("a.ttl", b'\n<http://a> <http://b> "caf\xe9" .', r"a\.ttl:2: expected UTF-8, found byte 0xe9"),
        ("a.ttl", b"", r"a\.ttl: expected instances of skos:Concept that are not deprecated, found none"),
        ("a.ttl", b"<http://a> <http://b> " + b"[" * 5_000, r"a\.ttl: expected Turtle, found: .*; correct the file"),
        (
            "a.ttl",
            rb'<http://\uD800> a <http://www.w3.org/2004/02/skos/core#Concept> ; <http://b> "x" .',
            r"a\.ttl: URI of a concept: the text contains half of a surrogate pair",
        ),
        ("a.rdf", b"<rdf>\n</oops>", r"a\.rdf:2: expected RDF/XML, found: mismatched tag"),
        ("a.rdf", b"<html/>", r"a\.rdf: expected instances of skos:Concept|a\.rdf.*: expected RDF/XML"),
        ("a.ttl.gz", b"plain", r"a\.ttl\.gz: the gzip stream breaks"),
        ("vocab.tsv", b"uri\tname\n\tname\n", r"vocab\.tsv:2: expected a URI, a tab and a name, found '\\tname'"),
        ("vocab.tsv", b"a\tb\nc\td\na\te\n", r"vocab\.tsv: uid 'a' occurs twice, in rows 1 and 3"),
        ("vocab.tsv", b"a\n", r"vocab\.tsv: expected at least one label, found none"),
    ],
)
def test_broken_vocabulary_is_refused_and_the_error_names_its_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message) as refusal:
        open_dataset(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no tab", r"train\.tsv:2: expected a text, a tab and URIs, found no tab in 'no tab'"),
        (f" \t{CATS}", r"train\.tsv:2: the text is empty"),
        (b"\xff\ta", r"train\.tsv:2: expected UTF-8"),
    ],
)
def test_wrong_line_is_refused_and_the_error_names_it(
    folder: Path, write_lines: WriteLines, line: str | bytes, message: str
) -> None:
    write_lines(folder / "train.tsv", [f"one\t{CATS}", line])
    with pytest.raises(DatasetError, match=message):
        open_dataset(folder).read_split("train")


def test_several_or_no_files_of_a_kind_are_refused(folder: Path) -> None:
    (folder / "test.tsv.gz").unlink()
    with pytest.raises(DatasetError, match=r"expected one file named test\.tsv, \*-test\.tsv, .*, found none"):
        open_dataset(folder).read_split("test")
    (folder / "pets.ttl").write_text(TURTLE)
    with pytest.raises(DatasetError, match=r"expected one file named vocab\.tsv, .*, found pets\.ttl, vocab\.tsv"):
        open_dataset(folder)


def test_unknown_field_and_language_of_a_tsv_vocabulary_are_refused(folder: Path, write_lines: WriteLines) -> None:
    with pytest.raises(DatasetError, match=r"--text-fields: expected prefLabel, altLabel, notation, found name"):
        open_dataset(folder, text_fields=("name",))
    with pytest.raises(
        DatasetError, match=r"vocab\.tsv: --label-language: expected a vocabulary as SKOS or CSV, found TSV"
    ):
        open_dataset(folder, label_language="en")
    write_lines(folder / "labels.jsonl", [{"uid": "a", "text": "b"}])
    with pytest.raises(DatasetError, match="--label-language: expected an Annif corpus, found the format native"):
        open_dataset(folder, label_language="en")


@pytest.mark.parametrize(
    ("vocabulary", "fields"),
    [("tsv", ()), ("tsv", ("notation",)), ("skos", ()), ("skos", ("prefLabel", "altLabel")), ("skos", ("notation",))],
)
def test_names_in_key_files_are_preferred_names_whatever_the_texts_of_labels_are(
    folder: Path, vocabulary: str, fields: tuple[str, ...]
) -> None:
    if vocabulary == "skos":
        mercuries = "".join(f'<http://m.org/{n}> a skos:Concept ; skos:prefLabel "Mercury"@en .\n' for n in (2, 1))
        use_skos(folder, TURTLE + mercuries)
    (folder / "train.tsv").unlink()
    (folder / "train").mkdir()
    for name, key in (("a", "dogs\n"), ("b", " cats \n\n"), ("c", "Mercury\n" if vocabulary == "skos" else "")):
        (folder / "train" / f"{name}.txt").write_text(name)
        (folder / "train" / f"{name}.key").write_text(key)
    language, notes = "en" if vocabulary == "skos" else None, list[str]()
    dataset = open_dataset(folder, text_fields=fields, label_language=language, empty_texts="keep", note=notes.append)
    split = dataset.read_split("train")
    found = [[dataset.labels.uids[label].as_py() for label in row] for row in label_lists(split)]
    assert found == [[DOGS], [CATS], ["http://m.org/1"] if vocabulary == "skos" else []]
    shared = [note for note in notes if "several subjects" in note]
    assert len(shared) == (vocabulary == "skos")
    assert all("'Mercury': http://m.org/1, http://m.org/2" in note for note in shared)


def test_hidden_files_of_file_systems_are_no_documents_and_no_vocabularies(folder: Path) -> None:
    (folder / "train.tsv").unlink()
    for name in ("train/a.txt", "train/a.tsv", "train/._a.txt", "train/.DS_Store", "._vocab.tsv", "._train"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(f"{CATS}\tcats\n".encode() if name == "train/a.tsv" else b"\0\5\x16\x07 \xff")
    (folder / "train/a.txt").write_text("a purr\n")
    assert open_dataset(folder).read_split("train").entries.texts.to_pylist() == ["a purr"]
    empty = folder / "empty"
    empty.mkdir()
    (empty / ".DS_Store").touch()
    with pytest.raises(DatasetError, match="expected a dataset, found an empty folder"):
        open_dataset(empty)
