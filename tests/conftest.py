"""Fixtures of all tests: a small dataset of topics, and a store with a bundle that is built from it.

While tests run, the shapes and types in the signatures of the trainer and of the core are checked.
The checks begin here because they apply only to modules that are imported later.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pkgutil
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from jaxtyping import install_import_hook

import recollect.trainer
from tests import type_checks

pytest_plugins = ["tests.fixtures", "tests.tiny_runs"]

# The imports of all test files make a million objects that stay. A third of their time would be searches for garbage.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# Functions of these modules are called for each row or each query. Checks would take most of the time of a test. The
# modules of methods cannot be checked: they import torch's types for mypy only.
_UNCHECKED = (
    "recollect.trainer.data.",
    "recollect.trainer.memory.inference",
    "recollect.trainer.memory.tune",
    "recollect.trainer.metrics",
)
_OF_METHODS = ("recollect.trainer.methods.scored", "recollect.trainer.methods.log_soft_top_k")
_TRAINER = [
    module.name
    for module in pkgutil.walk_packages(recollect.trainer.__path__, "recollect.trainer.")
    if module.name in _OF_METHODS
    or not (module.ispkg or module.name.startswith((*_UNCHECKED, "recollect.trainer.methods")))
]
_CORE = [f"recollect.core.{name}" for name in ("bundle", "encoder", "memory", "predictor", "scoring", "search", "rank")]
install_import_hook([*_TRAINER, *_CORE], f"{type_checks.__name__}.checked")

# A shell ignores Ctrl-C in the programs that it runs in the background, and their children inherit this. Tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Labels with their sentences: four training instances and one test query for each label. The last label has none.
TOPICS: dict[str, tuple[str, ...]] = {
    "Taxation": (
        "A bill to lower the income tax of small farms",
        "Raises the duty on imported wine and spirits",
        "Repeals the tax on the estates of the dead",
        "Gives families a credit for the care of children",
        "Who must pay tax on the sale of a house",
    ),
    "Medicine": (
        "A vaccine against malaria is tried in three countries",
        "Surgeons transplant a heart grown from stem cells",
        "The drug lowers blood pressure without side effects",
        "Nurses learn to treat burns in the field",
        "How doctors treat high blood pressure",
    ),
    "Astronomy": (
        "A comet passes close to the planet Jupiter",
        "The telescope photographs a distant galaxy",
        "Gravitational waves from two merging black holes",
        "Rings of ice around Saturn are younger than thought",
        "Photographs of galaxies taken by a telescope",
    ),
    "Cooking": (
        "Bake the bread in a hot oven for forty minutes",
        "Fry onions and garlic slowly in olive oil",
        "A soup of lentils, lemon and cumin",
        "Whisk eggs with sugar until the cream is stiff",
        "How long should bread be in the oven",
    ),
    "Football": (
        "The striker scores twice in the second half",
        "A penalty decides the final of the cup",
        "The goalkeeper signs a contract for three years",
        "Referees may stop the match to look at a video",
        "Who scored the penalty in the cup final",
    ),
    "音楽": (
        "交響楽団がベートーヴェンを演奏する",
        "The orchestra plays a symphony by Beethoven",
        "A pianist records all of Chopin's nocturnes",
        "The choir sings a mass in an old church",
        "An orchestra that plays symphonies",
    ),
    "Law": (
        "The court finds the contract void",
        "A judge must explain every sentence",
        "The witness changes her statement before the jury",
        "Appeals must be filed within thirty days",
        "When can a contract be void in court",
    ),
    "Never seen": (),
}
# Second labels of two sentences, so that some instances have two labels.
SECOND_LABELS = {
    "The goalkeeper signs a contract for three years": "Law",
    "A bill to lower the income tax of small farms": "Law",
}


class Built(NamedTuple):
    """The dataset of topics, the run and the store that are made from it, and its version. Tests must not change it."""

    dataset: Path
    run: Path
    store: Path
    version: str


def write_topics(folder: Path) -> Path:
    """Write the topics as a dataset folder in the native layout."""
    folder.mkdir(parents=True)
    labels = list(TOPICS)
    train, test = [], []
    for label, sentences in TOPICS.items():
        for nth, sentence in enumerate(sentences):
            uids = [label, *([SECOND_LABELS[sentence]] if sentence in SECOND_LABELS else [])]
            row = {"uid": f"{label}/{nth}", "text": sentence, "labels": uids}
            (test if nth == 4 else train).append(row)
    rows = {"train": train, "test": test, "labels": [{"uid": label, "text": label} for label in labels]}
    for name, lines in rows.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills. Tests must not change it.

    If pytest runs several processes, the first one that needs the folder makes it for all of them.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        make(folder)
        return folder
    folder = factory.getbasetemp().parent / name
    done = folder.with_suffix(".done")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The topics, encoded by MiniLM without training, and a current version with a flat index and an fp32 encoder."""
    folder = made_once(tmp_path_factory, "built", build_topics)
    return Built(folder / "dataset", folder / "run", folder / "store", (folder / "version").read_text())


def build_topics(folder: Path) -> None:
    from recollect.index_builder.build import build
    from recollect.index_builder.settings import BuildSettings
    from recollect.trainer.run import write_run
    from recollect.trainer.train_settings import TrainSettings

    dataset, run, store = write_topics(folder / "dataset"), folder / "run", folder / "store"
    write_run(TrainSettings(epochs=0, dataset=dataset, out=run))
    version = build(BuildSettings(run=run, store=store, index="flat", lexical="off", activate=True))
    (folder / "version").write_text(version)


@pytest.fixture(scope="session", autouse=True)
def bundle_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which all commands and servers keep copies of bundles, instead of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("bundle cache") / "bundles"
        patch.setenv("RECOLLECT_BUNDLE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def trusted_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The only certificate that HTTP clients trust. It belongs to no server.

    Every new client reads the certificates that it trusts. Those of the public authorities take 25 ms.
    """
    from tests.service.certificates import write_certificate

    with pytest.MonkeyPatch.context() as patch:
        path = write_certificate(tmp_path_factory.mktemp("trusted"), subject="nobody").certificate
        patch.setenv("SSL_CERT_FILE", str(path))
        yield path
