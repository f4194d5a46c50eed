"""`recollect demo`: sample dataset, memory, bundle and evaluation on one machine, without downloads."""

from __future__ import annotations

import os
import sys
import webbrowser

from recollect.core.system.console import print_status
from recollect.core.system.files import find_files
from recollect.index_builder.build import build
from recollect.index_builder.evaluation.evaluate import evaluate
from recollect.index_builder.evaluation.table import format_table
from recollect.index_builder.settings import BuildSettings, DemoSettings, EvaluateSettings
from recollect.model import open_model
from recollect.trainer.data.sample import write_sample
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings

# Packages that few programs use, or that have many names. Without them, the sample has two fifths fewer texts. Encoding
# the texts is most of the work of the demo.
_LEFT_OUT = (
    *("asyncio", "bdb", "curses", "doctest", "email", "encodings", "imaplib", "importlib", "mailbox"),
    *("multiprocessing", "pdb", "pydoc", "tkinter", "turtle", "unittest", "wsgiref", "xml", "xmlrpc"),
)
_QUESTION = "compute the square root of a number"


def demo(settings: DemoSettings) -> str:
    """Write the sample dataset, build its memory and its bundle, measure the bundle, and answer one question.

    Returns:
        The text to print: the table of measurements, the question and its answer.
    """
    dataset, run, store = (settings.folder / name for name in ("dataset", "run", "store"))
    if not find_files(dataset):
        print_status("sample: write sentences about the standard library")
        write_sample(dataset, _LEFT_OUT)
    training = TrainSettings(dataset=dataset, out=run, epochs=0, max_length=64)
    try:
        write_run(training)
    except MemoryFolderError:  # the memory is damaged
        write_run(training.model_copy(update={"overwrite": True}))
    version = build(BuildSettings(run=run, store=store, activate=True))
    settings_to_measure = EvaluateSettings.model_validate(
        {"dataset": dataset, "store": store, "lambda": [0, 0.1, 0.5, 0.9, 1]}
    )
    evaluation = evaluate(settings_to_measure)
    lines = [f"{evaluation.queries:,} held-out sentences, in percent:", *format_table(evaluation), ""]
    labels = open_model(store, version).predict(_QUESTION, top_k=5)
    return "\n".join([*lines, f"{_QUESTION!r}:", *(f"  {label.score:.3f}  {label.uid}" for label in labels)])


def open_playground(url: str) -> None:
    """Open the playground in a browser if a person sits at a display. A program such as a CI job gets no browser."""
    has_display = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_display and not os.environ.get("CI"):
        webbrowser.open(url)
