"""The page of all claims in Markdown: paper, our figures, command and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from benchmarks.proofs.claim import Check, Claim, Measurement

_HEAD = """\
# Claims of the papers, repeated

`python -m benchmarks.proofs table` writes this page from recorded measurements. Do not edit it.

Each command trains and measures on small data on a CPU, with three seeds. A dataset is cut to 2,000 training texts,
which are the same for all seeds. Only the labels of these texts stay, and only test texts with such a label. Each label
thus has a training text, which favours the votes of instances. A seed draws 500 test texts, and all random numbers of
the training. A figure is the mean of the seeds, with the lowest and the highest value in brackets. Metrics are in
percent.

A claim *holds* if the order of the two figures is as stated with every seed. Otherwise it *does not hold here*. Small
data, a small encoder or a short training may be the reason. The rule is no test of significance, because the seeds
share their training texts and some of their test texts. The figures of the papers are from their own, larger datasets.
A figure is missing (-) where the paper could not be read for this page.
"""


def page(claims: Iterable[Claim], measured: Mapping[str, list[Measurement]]) -> str:
    """The page of all claims."""
    return "\n".join([_HEAD, *(line for claim in claims for line in section(claim, measured.get(claim.name, [])))])


def section(claim: Claim, measured: list[Measurement]) -> Iterator[str]:
    """The lines of one claim."""
    command = f"python -m benchmarks.proofs {claim.name}" + (" --data FOLDER" if claim.uses_data else "")
    yield f"## {claim.source}\n\n{claim.summary} {claim.conditions}\n\n```sh\n{command}\n```\n"
    if not measured:
        yield "Not measured yet.\n"
        return
    yield "| claim | paper | data | ours | verdict |\n|---|---|---|---|---|"
    for check in claim.checks:
        for row in measured:
            verdict = "holds" if row.holds(check) else "**does not hold here**"
            yield f"| {check.statement} | {check.paper or '-'} | {row.data} | {_ours(check, row)} | {verdict} |"
    yield ""


def _ours(check: Check, row: Measurement) -> str:
    return f"{_figure(check.larger, row)} > {_figure(check.smaller, row)}"


def _figure(figure: str | float, row: Measurement) -> str:
    if not isinstance(figure, str):
        return f"{figure:g}"
    values = row.values(figure)
    return f"{figure} {sum(values) / len(values):.1f} [{min(values):.1f}, {max(values):.1f}]"
