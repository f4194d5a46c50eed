"""`recollect demo`: sample dataset, memory, bundle, evaluation and server on one machine, without downloads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import Field
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from recollect.core.settings import Settings
from recollect.core.system.console import print_line, print_status
from recollect.core.system.files import find_files

# Packages that few programs use, or that have many names. Without them, the sample has two fifths fewer texts. Encoding
# the texts is most of the work of the demo.
_LEFT_OUT = (
    *("asyncio", "bdb", "curses", "doctest", "email", "encodings", "imaplib", "importlib", "mailbox"),
    *("multiprocessing", "pdb", "pydoc", "tkinter", "turtle", "unittest", "wsgiref", "xml", "xmlrpc"),
)
_QUESTION = "compute the square root of a number"


class DemoSettings(Settings):
    """Run everything on this machine: sample dataset, memory, bundle, evaluation and service."""

    folder: CliPositionalArg[Path] = Field(Path("demo"), description="working folder")
    serve: CliImplicitFlag[bool] = Field(True, description="serve after the demo, until Ctrl-C")
    host: str = Field("127.0.0.1", description="address to serve on")
    port: int = Field(8000, ge=0, le=65535, description="port to serve on; 0: any free port")
    browser: CliImplicitFlag[bool] = Field(True, description="open the playground in a browser if there is a display")


def demo(settings: DemoSettings) -> list[str] | None:
    if not settings.serve:
        return build_and_ask(settings.folder)
    from recollect.service.addresses import bind, start_listening, url
    from recollect.service.process.server import serve
    from recollect.service.settings import ServeSettings

    with bind(settings.host, settings.port) as bound:  # a port in use fails here, before the work of minutes
        for line in build_and_ask(settings.folder):
            print_line(line)
        start_listening(bound)  # the browser waits until the server answers
        print(f"\nTry it in a browser: {url(bound)}/ (stop with Ctrl-C)", flush=True)  # noqa: T201
        if settings.browser:
            _open_playground(f"{url(bound)}/")
        serve(ServeSettings(store=settings.folder / "store", workers=1), bound)
    return None


def build_and_ask(folder: Path) -> list[str]:
    """Write the sample dataset, build its memory and its bundle, measure it, and return the lines to print."""
    from recollect.index_builder.build import build
    from recollect.index_builder.evaluation.evaluate import evaluate
    from recollect.index_builder.evaluation.table import format_table
    from recollect.index_builder.settings import BuildSettings, EvaluateSettings
    from recollect.model import open_model
    from recollect.trainer.data.sample import write_sample
    from recollect.trainer.errors import MemoryFolderError
    from recollect.trainer.run import write_run
    from recollect.trainer.train_settings import TrainSettings

    dataset, run, store = (folder / name for name in ("dataset", "run", "store"))
    if not find_files(dataset):
        print_status("sample: write sentences about the standard library")
        write_sample(dataset, _LEFT_OUT)
    training = TrainSettings(dataset=dataset, out=run, epochs=0, max_length=64)
    try:
        write_run(training)
    except MemoryFolderError:  # the memory is damaged
        write_run(training.model_copy(update={"overwrite": True}))
    version = build(BuildSettings(run=run, store=store, activate=True))
    measured = {"dataset": dataset, "store": store, "lambda": [0, 0.1, 0.5, 0.9, 1]}
    evaluation = evaluate(EvaluateSettings.model_validate(measured))
    lines = [f"{evaluation.queries:,} held-out sentences, in percent:", *format_table(evaluation), ""]
    labels = open_model(store, version).predict(_QUESTION, top_k=5)
    return [*lines, f"{_QUESTION!r}:", *(f"  {label.score:.3f}  {label.uid}" for label in labels)]


def _open_playground(url: str) -> None:
    """Open the playground in a browser if a person sits at a display. A program such as a CI job gets no browser."""
    import webbrowser

    has_display = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_display and not os.environ.get("CI"):
        webbrowser.open(url)
