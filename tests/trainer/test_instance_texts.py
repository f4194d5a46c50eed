"""`recollect train` says which instance texts the encoder cuts, and which are not in its language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tokenizers import models

from recollect.trainer.encoding.instance_texts import describe_instances
from tests.trainer.conftest import load
from tests.trainer.runs import Train

ENGLISH = "An introduction to the history of economic thought and the foundations of modern trade policy"
GERMAN = "Einführung in die Geschichte der Wirtschaftswissenschaften und Grundlagen der Handelspolitik"
FINNISH = "Johdatus taloustieteen historiaan sekä kauppapolitiikan perusteisiin itsenäisyyden alkuvuosikymmeninä"


def test_train_says_how_much_of_long_texts_is_cut_and_that_their_beginnings_are_equal(
    train: Train, toy: Path, tiny_bert: Any, write_lines: Callable[..., Path], run_folder: Path
) -> None:
    long = [{"uid": f"i{row}", "text": "lazy dog " * 800 + f"garden {'red ' * row}"} for row in range(30)]
    short = [{"uid": "short", "text": "red chair"}, {"uid": "fits", "text": "red " * 14}]
    rows = [row | {"labels": ["L0"]} for row in [*long, *short]]
    write_lines(toy / "labels.jsonl", [{"uid": "L0", "text": "garden"}, {"uid": "L1", "text": "lawn " * 13}])
    write_lines(toy / "train.jsonl", rows)
    flags = ["--out", run_folder, "--encoder", tiny_bert.folder, "--epochs", 0]
    lines = train(*flags, "--max-length", 16, "--label-max-length", 8, dataset=toy).err.splitlines()
    assert [line for line in lines if line.startswith(("instances: ", "labels: "))] == [
        # 13 words and 2 special tokens, of which 8 tokens are kept
        f"labels: 1 of 2 texts are cut at --label-max-length 8 (47% of their tokens); for example {'lawn ' * 12!r}",
        "instances: 30 of 32 texts are longer than --max-length 16: 99% of their tokens are cut",
        "instances: 30 different texts have equal beginnings of 16 tokens, so their keys are equal; raise --max-length",
    ]


def test_texts_in_another_language_than_english_are_told_for_an_english_vocabulary_only(
    minilm: Any, tiny_bert: Any
) -> None:
    expected = "instances: the texts break into {} pieces a word (English: 1.2): this encoder was not made for their "
    expected += "language; try --encoder multilingual"
    for text, pieces in ((ENGLISH, None), (GERMAN, "2.7"), (FINNISH, "4.6")):
        lines = [*describe_instances(minilm, pa.array([text] * 20, pa.large_string()))]
        assert lines == ([] if pieces is None else [expected.format(pieces)])
    several = load(tiny_bert.folder)
    letters = dict.fromkeys(["[UNK]", *map(chr, range(97, 123)), "▁"], -20.0)
    vocabulary = letters | {f"piece{row}": -9.0 for row in range(100_000)}
    several.tokenizer.model = models.Unigram([*vocabulary.items()], unk_id=0)
    assert not any(
        "pieces" in line for line in describe_instances(several, pa.array([FINNISH] * 20, pa.large_string()))
    )
