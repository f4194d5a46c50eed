from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect.trainer.data.dataset import Dataset, open_dataset
from recollect.trainer.errors import DatasetError

WriteLines = Callable[..., Path]


@pytest.fixture
def open_with(tmp_path: Path, write_lines: WriteLines) -> Callable[..., Dataset]:
    """Returns a function that writes two labels and the given instances, and opens the dataset."""

    def open_folder(*instances: Any, suffix: str = ".json.gz") -> Dataset:
        labels = [
            {"uid": "B001", "title": "Garden chair"},
            {"uid": "B002", "title": "Red paint", "content": "One litre"},
        ]
        write_lines(tmp_path / f"lbl{suffix}", labels)
        write_lines(tmp_path / f"trn{suffix}", instances)
        return open_dataset(tmp_path)

    return open_folder


OpenWith = Callable[..., Dataset]


def test_text_is_the_title_followed_by_the_content_if_there_is_one(open_with: OpenWith) -> None:
    dataset = open_with(
        {"title": "Chair", "content": "of wood", "target_ind": []},
        {"title": "Chair", "content": "  ", "target_ind": []},
        {"title": "Chair", "target_ind": []},
        {"title": "", "content": "only content", "target_ind": []},
        {"title": "Chair", "content": None, "target_ind": []},
    )
    assert dataset.labels.texts.to_pylist() == ["Garden chair", "Red paint One litre"]
    assert dataset.read_split("train").entries.texts.to_pylist() == [
        "Chair of wood", "Chair", "Chair", "only content", "Chair",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "label", "instance"),
    [
        (("title",), "Red paint", "Chair"),
        (("title", "content"), "Red paint One litre", "Chair of wood"),
        (("content", "title"), "One litre Red paint", "of wood Chair"),
    ],
)
def test_text_fields_choose_the_fields_of_labels_and_instances_and_their_order(
    open_with: OpenWith, tmp_path: Path, fields: tuple[str, ...], label: str, instance: str
) -> None:
    open_with({"title": "Chair", "content": "of wood", "target_ind": []})
    dataset = open_dataset(tmp_path, text_fields=fields)
    assert dataset.labels.texts.to_pylist() == ["Garden chair", label]
    assert dataset.read_split("train").entries.texts.to_pylist() == [instance]


@pytest.mark.parametrize(
    ("instance", "complaint"),
    [
        ({"title": "t", "target_ind": [2]}, "label position 2 is out of range; expected 0 to 1"),
        ({"title": "t", "target_ind": ["B001"]}, "expected a label position, found 'B001'"),
        ({"title": "t"}, "expected 'target_ind' to be a list, found None"),
        ({"title": " ", "content": "", "target_ind": []}, "'title': the text is empty"),
        ("{", "expected a JSON object, found '{'"),
    ],
)
def test_bad_line_is_refused_and_the_error_names_file_and_line(
    open_with: OpenWith, instance: Any, complaint: str
) -> None:
    dataset = open_with({"title": "good", "target_ind": []}, instance)
    with pytest.raises(DatasetError, match=rf"trn\.json\.gz:2: .*{complaint}|trn\.json\.gz:2: {complaint}"):
        dataset.read_split("train")
