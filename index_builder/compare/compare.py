"""The comparison, top to bottom: check, train and tune each contestant, measure all, write the report."""

from __future__ import annotations

import json

from index_builder.compare.contest import check_sizes, read_runs
from index_builder.compare.folder import ComparisonFolder
from index_builder.compare.made import how_it_was_made, title
from index_builder.compare.markdown import markdown, markdown_table
from index_builder.compare.page import page
from index_builder.compare.quality import measure
from index_builder.compare.queries import Queries
from index_builder.compare.report import Comparison
from index_builder.compare.standing import Result, Standing
from index_builder.compare.tables import quality_table
from index_builder.compare.training import train_and_tune
from index_builder.console import say
from index_builder.settings import CompareSettings
from trainer.data.dataset import open_dataset
from trainer.data.split import fingerprint
from trainer.encoder import choose_device
from trainer.files import write_json, write_text
from trainer.memory import open_memory


def compare(settings: CompareSettings) -> str:
    """Compare methods, going on where an earlier call stopped.

    Returns:
        The table in Markdown or all figures in JSON, as the settings ask.

    Raises:
        BuildError: If the contestants cannot be trained as asked, or the folder holds something else.
        DatasetError: If the dataset breaks its contract, or has no test split.
        EncoderError: If the device is absent.
        ContestantError: If a training or tuning fails; what was done before stays.
    """
    device = choose_device(settings.device)
    runs = read_runs(settings)
    dataset = open_dataset(settings.dataset, settings.format)
    train, test = dataset.read_split("train"), dataset.read_split("test")
    check_sizes(runs, settings, train, len(dataset.labels), device)
    folder = ComparisonFolder(settings.out)
    folder.begin(runs, fingerprint(dataset.labels, train))

    for nth, run in enumerate(runs, start=1):
        say(f"compare: {run.name}, {nth} of {len(runs)}")
        train_and_tune(run, settings, folder)

    test = test.head(settings.limit) if settings.limit else test
    queries = Queries(dataset.labels, test, settings.propensity, frozen=settings.train == "adapter")
    standings = {run.contestant.name: Standing(run.contestant, []) for run in runs}
    for run in runs:
        say(f"compare: {run.name} answers {len(queries):,} test texts")
        quality = measure(folder.run(run), queries, device)
        standings[run.contestant.name].results.append(Result.of(folder.run(run), run.seed, quality))

    found, plan = list(standings.values()), open_memory(folder.untrained / "memory").plan
    made = how_it_was_made(settings, found, queries, plan, device)
    comparison = Comparison.of(title(settings), settings.metric, found, queries.sizes, made)
    _write(comparison, folder)
    return json.dumps(comparison.as_json()) if settings.json_ else markdown_table(quality_table(found))


def _write(comparison: Comparison, folder: ComparisonFolder) -> None:
    drawn = comparison.plots()
    for name, svg in drawn.items():
        write_text(folder.plots / f"{name}.svg", svg)
    write_text(folder.path / "report.html", page(comparison, drawn))
    write_json(folder.path / "report.json", comparison.as_json())
    write_text(folder.path / "report.md", markdown(comparison, drawn))
    say(f"{folder.path}: report.md, report.html, report.json and plots/")
