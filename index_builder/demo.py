"""The whole road on one machine, no download beyond the packages: what `make demo` shows."""

from __future__ import annotations

from index_builder.build import build
from index_builder.console import say
from index_builder.evaluate import evaluate, table
from index_builder.settings import BuildSettings, DemoSettings, EvaluateSettings
from service.bundle.bundle import Bundle
from service.options import resolve_options
from service.predictor.predictor import Predictor
from service.store.store import Store
from trainer.data.sample import write_sample
from trainer.errors import MemoryFolderError
from trainer.run import write_run
from trainer.train_settings import TrainSettings

_QUESTION = "compute the square root of a number"


def demo(settings: DemoSettings) -> str:
    """Make the sample, its memory and its bundle; measure it; ask it a question.

    Returns:
        The answer's own text, ready to print: the table, the question and the answer.
    """
    dataset, run, store = (settings.folder / name for name in ("dataset", "run", "store"))
    if not dataset.is_dir():
        say("sample: reading the standard library's documentation")
        write_sample(dataset)
    training = TrainSettings(dataset=dataset, out=run, epochs=0, max_length=64)
    try:
        write_run(training)
    except MemoryFolderError:  # of another release, or damaged
        write_run(training.model_copy(update={"overwrite": True}))
    version = build(BuildSettings(run=run, store=store, activate=True))
    sweep = EvaluateSettings.model_validate({"dataset": dataset, "store": store, "lambda": [0, 0.1, 0.5, 0.9, 1]})
    evaluation = evaluate(sweep)
    lines = [f"{evaluation.queries:,} held-out sentences, in percent:", *table(evaluation), ""]
    return "\n".join(lines + _ask(Store(store).open(version)))


def _ask(bundle: Bundle) -> list[str]:
    predictor = Predictor.open(bundle, threads=1)
    answer = predictor.predict([_QUESTION], resolve_options(predictor.defaults)).answers[0]
    return [f"{_QUESTION!r}:", *(f"  {label.score:.3f}  {label.uid}" for label in answer.labels[:5])]
