"""`recollect train` tells which label texts the encoder reads only in part, or as another label's text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect.trainer.encoding.label_texts import describe_unclear_labels
from tests.trainer.runs import Train


def test_train_counts_the_label_texts_of_each_problem_and_shows_one(
    train: Train, toy: Path, tiny_bert: Any, write_lines: Callable[..., Path], run_folder: Path
) -> None:
    texts = ["red paint", "Red PAINT", "lazy dog " * 5, "quick fox " * 9, "garden", "\u4ea4\u97ff", "chair"]
    write_lines(toy / "labels.jsonl", [{"uid": f"L{row}", "text": text} for row, text in enumerate(texts)])
    flags = ["--out", run_folder, "--encoder", tiny_bert.folder, "--epochs", 0, "--label-max-length", 8]
    lines = train("--max-length", 16, *flags, dataset=toy).err.splitlines()
    assert [line for line in lines if line.startswith("labels: ")] == [
        "labels: 1 of 7 texts have the tokens of an earlier label, so their keys are equal; for example 'Red PAINT'",
        f"labels: 2 of 7 texts are cut at --label-max-length 8 (50% of their tokens); for example {texts[2][:60]!r}",
        "labels: 1 of 7 texts have characters that the tokenizer cannot read ([UNK]); for example '\u4ea4\u97ff'",
    ]


def test_texts_in_another_script_are_told_for_minilm_only(minilm: Any, tiny_encoder: Any) -> None:
    texts = ["Straßenbahn", "Phở bò", "β-carotene", "2,000 €", "музыка", "음악"]
    (line,) = (line for line in describe_unclear_labels(minilm, texts) if "English" in line)
    assert line.startswith("labels: 2 of 6 texts are not in Latin script, and minilm is an English model")
    assert line.endswith("choose another --encoder, such as multilingual; for example 'музыка'")
    assert not any("English" in line for line in describe_unclear_labels(tiny_encoder, texts))
