"""The sections with errors: the hardest labels, and the hardest texts with the votes for their labels."""

from __future__ import annotations

from collections.abc import Iterator

from recollect.index_builder.evaluation.report.hardest import HardQuery, hardest_labels, hardest_queries
from recollect.index_builder.evaluation.report.subject import Subject
from recollect.service.predictor.answers import ScoredLabel
from recollect.trainer.report.page import Cell, Section, Table

# Number of votes that are shown for a label.
_VOTES = 3


def hardest_labels_section(subject: Subject) -> Section:
    headings = ["label", "training texts", "test texts", "found", "most often first instead", "a missed text"]
    rows = [
        [
            Cell(subject.name(each.label)),
            Cell(f"{subject.truth.label_counts[each.label]:,}"),
            Cell(f"{each.true:,}"),
            Cell(f"{each.found / each.true:.0%}"),
            Cell("-" if each.instead is None else subject.name(each.instead)),
            Cell(each.missed),
        ]
        for each in hardest_labels(subject.answering.found, subject.truth, subject.test)
    ]
    if not rows:
        return Section("Hardest labels", "The first ten labels contain each label that has at least three test texts.")
    return Section(
        "Hardest labels",
        "The labels with at least three test texts that the first ten labels of these texts contain least often. A "
        "label that often comes first instead may mean nearly the same.",
        tables=[Table("The hardest labels", headings, rows, texts=(0, 4, 5))],
    )


def hardest_texts_section(subject: Subject) -> Section:
    answering = subject.answering
    found = hardest_queries(subject.predictor, answering.setting, answering.found, subject.truth, subject.test)
    if not found:
        return Section("Hardest texts", "The first labels of each text are its true labels.")
    return Section(
        "Hardest texts",
        "The texts with the lowest nDCG@5, first those with the highest score of the first label. Each table has the "
        "first five labels, all true labels, and the strongest votes for each label; true labels are marked. A wrong "
        "label with strong votes often shows that a true label is missing in the dataset.",
        folded=[_text_table(subject, each) for each in found],
    )


def _text_table(subject: Subject, query: HardQuery) -> Table:
    rows = [
        [
            Cell(f"{rank}"),
            Cell(label.text, best=true),
            Cell("yes" if true else "no"),
            Cell(f"{label.score:.3f}"),
            Cell("\n".join(_votes(label))),
        ]
        for rank, label, true in query.answers
    ]
    rows += [
        [Cell("> 100"), Cell(subject.name(label), best=True), Cell("yes"), Cell("-"), Cell("none, or too few")]
        for label in query.missing
    ]
    return Table(query.text, ["rank", "label", "true", "score", "strongest votes"], rows, texts=(1, 4))


def _votes(label: ScoredLabel) -> Iterator[str]:
    votes = sorted(label.because or [], key=lambda vote: -abs(vote.share))
    for vote in votes[:_VOTES]:
        source = "the label's text" if vote.kind == "label" else f"“{vote.text}”"
        yield f"{vote.share:.3f}  {source}" + (" (by words)" if vote.by == "words" else "")
    if others := votes[_VOTES:]:
        yield f"{sum(vote.share for vote in others):.3f}  {len(others):,} other votes"
