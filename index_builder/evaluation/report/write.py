"""Write the page: `report.html`, and `reliability.svg` if the version gives probabilities."""

from __future__ import annotations

import os
from pathlib import Path

from recollect.index_builder.errors import BuildError
from recollect.index_builder.evaluation.comparison import Comparison
from recollect.index_builder.evaluation.report.hardest_sections import hardest_labels_section, hardest_texts_section
from recollect.index_builder.evaluation.report.quality import (
    comparison_section,
    curves_section,
    decile_section,
    probability_section,
    quality_section,
)
from recollect.index_builder.evaluation.report.subject import Subject
from recollect.service.files import write_text
from recollect.trainer.report.page import html_page

_PAGE, _DIAGRAM = "report.html", "reliability.svg"
_SYMBOLS = {"lambda": "λ", "temperature": "τ", "top_b": "b", "word_weight": "word weight"}


def check_report_folder(folder: Path) -> None:
    """Check that the page can be written, before the work of minutes.

    Raises:
        BuildError: If the folder is a file, lies below a file, or cannot be changed.
    """
    where = f"--report {folder}"
    if (folder / _PAGE).is_dir():
        raise BuildError(f"{where}: expected a file {_PAGE} or none, found a folder; choose another folder")
    nearest = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise BuildError(f"{where}: expected a folder, found the file {nearest}; choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise BuildError(
            f"{where}: expected a folder that you may change, found {nearest} without the right to write; choose "
            "another folder"
        )


def write_report(
    folder: Path, subject: Subject, comparison: Comparison | None, coverage: list[dict[str, float]]
) -> None:
    """Write the page into a folder, which is created if it is absent. Files of the same name are replaced.

    Args:
        folder: The folder.
        subject: The measured version.
        comparison: The comparison with another version.
        coverage: The coverage statements of the version, and the shares found here.
    """
    probabilities = probability_section(subject, coverage)
    sections = [
        quality_section(subject),
        None if comparison is None else comparison_section(subject, comparison),
        curves_section(subject, comparison),
        decile_section(subject),
        probabilities,
        hardest_labels_section(subject),
        hardest_texts_section(subject),
    ]
    title = f"Quality of {subject.version}"
    page = html_page(title, _facts(subject), [section for section in sections if section is not None])
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / _PAGE, page)
    if probabilities is not None:
        write_text(folder / _DIAGRAM, probabilities.charts[0].svg)


def _facts(subject: Subject) -> dict[str, str]:
    counts, fields = subject.predictor.manifest.counts, subject.answering.fields
    return {
        "dataset": subject.dataset.resolve().name,
        "test texts": f"{len(subject.test):,}",
        "labels": f"{counts.labels:,}",
        "training texts": f"{subject.predictor.manifest.counts.instances:,}",
        **{_SYMBOLS[name]: f"{value:g}" for name, value in fields.items() if name != "order"},
        "labels in order of": subject.answering.setting.order,
    }
