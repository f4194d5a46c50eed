"""The comparison, step by step: plan the runs, train and tune each, measure all, write the report."""

from __future__ import annotations

import json

from recollect.index_builder.compare.comparison import Comparison
from recollect.index_builder.compare.folder import ComparisonFolder
from recollect.index_builder.compare.plan import check_sizes, plan_runs
from recollect.index_builder.compare.provenance import provenance, report_title
from recollect.index_builder.compare.quality import measure
from recollect.index_builder.compare.queries import Queries
from recollect.index_builder.compare.report import html_report, markdown_report, markdown_table
from recollect.index_builder.compare.results import ContestantResults, RunResult
from recollect.index_builder.compare.tables import quality_table
from recollect.index_builder.compare.training import train_and_tune
from recollect.index_builder.console import print_status
from recollect.index_builder.settings import CompareSettings
from recollect.service.files import write_json, write_text
from recollect.trainer.data.dataset import open_named
from recollect.trainer.data.split import fingerprint
from recollect.trainer.distributed import require_single_process
from recollect.trainer.encoding.encoder import choose_device
from recollect.trainer.memory.memory import open_memory


def compare(settings: CompareSettings) -> str:
    """Compare methods, or continue an interrupted comparison.

    Returns:
        The table in Markdown; all figures as JSON with `--json`.

    Raises:
        BuildError: If a contestant's flags are invalid, or the output folder holds files of something else.
        DatasetError: If the dataset is invalid or has no test split.
        TrainingError: If torchrun started several processes.
        EncoderError: If the requested device is absent.
        ContestantError: If the training or the tuning of a run fails; the finished steps stay in the output folder.
    """
    require_single_process("recollect compare")
    device = choose_device(settings.device)
    runs = plan_runs(settings)
    dataset = open_named(settings)
    train, test = dataset.read_split("train"), dataset.read_split("test")
    check_sizes(runs, settings, train, len(dataset.labels), device)
    folder = ComparisonFolder(settings.out)
    folder.open(runs, fingerprint(dataset.labels, train))

    for number, run in enumerate(runs, start=1):
        print_status(f"compare: {run.name}, {number} of {len(runs)}")
        train_and_tune(run, settings, folder)

    test = test.head(settings.limit) if settings.limit else test
    queries = Queries(dataset.labels, test, settings.propensity, frozen=settings.trained == "adapter")
    by_name = {run.contestant.name: ContestantResults(run.contestant, []) for run in runs}
    for run in runs:
        print_status(f"compare: measure {run.name} on {len(queries):,} test texts")
        quality = measure(folder.run(run), queries, device, with_ranker=settings.rank != "no")
        by_name[run.contestant.name].runs.append(RunResult.of(folder.run(run), run.seed, quality))

    results, plan = list(by_name.values()), open_memory(folder.untrained / "memory").plan
    facts = provenance(settings, results, queries, plan, device)
    comparison = Comparison.of(report_title(settings), settings.metric, results, queries.sizes, facts)
    _write_report(comparison, folder)
    return json.dumps(comparison.as_json()) if settings.json_ else markdown_table(quality_table(results))


def _write_report(comparison: Comparison, folder: ComparisonFolder) -> None:
    plots = comparison.plots()
    for name, chart in plots.items():
        write_text(folder.plots / f"{name}.svg", chart.svg)
    write_text(folder.path / "report.html", html_report(comparison, plots))
    write_json(folder.path / "report.json", comparison.as_json())
    write_text(folder.path / "report.md", markdown_report(comparison, plots))
    print_status(f"{folder.path}: wrote report.md, report.html, report.json and plots/")
