"""The ranker's folder in a memory.

memory/ranker/   ranker.json    the model, as a bundle contains it; absent if the ranker does not help
                 classifier.*   linear classifiers, as a bundle contains them; absent if they do not help
                 held_out.npz   logits of held-out texts, from models that were fitted without them
                 report.json    the gains, the default order, and the memory for which the ranker was fitted
                 cross_*        the second ranker with its cross-encoder, and its logits of held-out texts; all or none
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.core.bundle.files import CROSS_ENCODER, CROSS_RANKER, CROSS_TOKENIZER, RANKER
from recollect.core.bundle.manifest import Defaults, Probabilities
from recollect.core.errors import BundleError
from recollect.core.reranker.candidates import CLASSIFIER, WORD_FEATURES
from recollect.core.reranker.classifier import Classifier
from recollect.core.reranker.cross_ranker import CrossRankerFile
from recollect.core.reranker.label_facts import LabelFacts
from recollect.core.reranker.model import RankerFile, read_ranker_file
from recollect.core.system.console import print_status
from recollect.core.system.files import read_json, write_json, write_text
from recollect.core.words.names import Names
from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.errors import BuildError
from recollect.index_builder.reranker.calibrate import HeldOut, reliable_probabilities
from recollect.index_builder.reranker.cooccurrence import count_cooccurrence
from recollect.index_builder.reranker.orders import OrderChoice
from recollect.index_builder.settings import BuildSettings, Lexical
from recollect.trainer.memory.memory import Memory

if TYPE_CHECKING:  # it needs torch
    from recollect.index_builder.reranker.cross_rank import CrossFit

_FOLDER, _HELD_OUT, _REPORT = "ranker", "held_out.npz", "report.json"
_CROSS_HELD_OUT = "cross_held_out.npz"


def write_ranker(
    memory: Memory,
    ranker: RankerFile | None,
    classifier: Classifier | None,
    held_out: HeldOut,
    report: dict[str, Any],
    cross: CrossFit | None = None,
) -> None:
    """Replace the ranker of a memory; None removes the model and keeps the report.

    The new folder is complete before it replaces the previous one.
    """
    folder, incoming = memory.folder / _FOLDER, memory.folder / f".{_FOLDER}-incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    if ranker is not None:
        write_text(incoming / RANKER, ranker.model_dump_json() + "\n")
        np.savez(incoming / _HELD_OUT, **vars(held_out))
        if classifier is not None:
            classifier.write(incoming)
    if cross is not None:
        write_text(incoming / CROSS_RANKER, cross.file.model_dump_json() + "\n")
        for name, content in cross.files.items():
            (incoming / name).write_bytes(content)
        np.savez(incoming / _CROSS_HELD_OUT, **vars(cross.held_out))
    write_json(incoming / _REPORT, report | {"fitted_for": fitted_for(memory)})
    shutil.rmtree(folder, ignore_errors=True)
    incoming.rename(folder)


def has_ranker(memory: Memory) -> bool:
    return (memory.folder / _FOLDER / RANKER).is_file()


def read_ranker(memory: Memory) -> RankerFile:
    """Read the ranker of a memory that has one.

    Raises:
        BundleError: If the trees are damaged.
        BuildError: If the report is damaged, or the ranker was fitted for another memory or for other defaults.
    """
    folder = memory.folder / _FOLDER
    try:
        ranker = read_ranker_file(folder / RANKER, RankerFile)
        saved = read_json(folder / _REPORT)["fitted_for"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f"{folder / _REPORT}: expected the report of a ranker, found: {error}; run `recollect rank` again"
        ) from None
    expected = fitted_for(memory)
    if saved != expected:
        fields = saved if isinstance(saved, dict) else {}
        differs = [name for name in fields | expected if fields.get(name) != expected.get(name)]
        raise BuildError(
            f"{folder}: expected a ranker of this memory, found one that differs in {', '.join(differs)}; "
            "run `recollect rank` again, or build with --rank off"
        )
    return ranker


def read_order(memory: Memory) -> OrderChoice:
    """The default order of a memory that has a ranker, and the weight of the order macro.

    A `BuildError` if the report is damaged. A report without an order is of a release without the order macro.
    """
    path = memory.folder / _FOLDER / _REPORT
    try:
        report = read_json(path)
        found = report.get("order", "probability"), report.get("tail_weight")
        checked = Defaults(lambda_=1, temperature=1, top_b=1, top_k=1, order=found[0], tail_weight=found[1])
    except (OSError, ValueError, AttributeError):
        raise BuildError(
            f"{path}: expected the default order, found another file; run `recollect rank` again"
        ) from None
    return OrderChoice(checked.order, checked.tail_weight)


def read_held_out(memory: Memory, name: str = _HELD_OUT) -> HeldOut:
    """Read the logits of held-out texts of a memory that has a ranker; a `BuildError` if the file is damaged."""
    path = memory.folder / _FOLDER / name
    with contextlib.suppress(OSError, ValueError, KeyError), np.load(path, allow_pickle=False) as saved:
        held_out = HeldOut(*(saved[name] for name in ("logit", "hit", "sizes")))
        if held_out.logit.shape == held_out.hit.shape and len(held_out.logit) == len(held_out.sizes):
            return held_out
    raise BuildError(f"{path}: expected the logits of held-out texts, found another file; run `recollect rank` again")


def fitted_for(memory: Memory) -> dict[str, Any]:
    """The properties of a memory on which the features depend."""
    plan, distilled = memory.plan, memory.distilled
    return {
        "dataset_sha256": plan.dataset_sha256,
        "encoder_sha256": plan.encoder_sha256,
        **({} if distilled is None else {"query_vectors_sha256": hashlib.sha256(distilled.data).hexdigest()}),
        **{name: float(value) for name, value in memory.defaults.items()},
    }


def choose_ranker(memory: Memory, settings: BuildSettings) -> RankerFile | None:
    """The ranker that the bundle gets; None if the run has none, or `--rank` is off.

    Raises:
        BundleError: If the ranker is damaged.
        BuildError: If it was fitted for another memory, or needs the lexical index that `--lexical off` leaves out.
    """
    if settings.rank == "off" or not has_ranker(memory):
        return None
    ranker = read_ranker(memory)
    if settings.lexical == "off" and needs_words(ranker):
        raise BuildError(
            f"{settings.run}: --lexical off: the ranker of this run needs the words that texts share; leave --lexical "
            "out, build with --rank off, or run `recollect rank` again with --lexical off"
        )
    return ranker


def lexical_for(ranker: RankerFile | None, lexical: Lexical) -> Lexical:
    """`--lexical auto` keeps the lexical index for a ranker that needs it, even if words gain nothing as votes."""
    return "on" if lexical == "auto" and ranker is not None and needs_words(ranker) else lexical


def write_bundle_ranker(memory: Memory, folder: Path, ranker: RankerFile) -> tuple[Probabilities | None, OrderChoice]:
    """Write the ranker's files into a bundle folder, and calibrate its probabilities on held-out texts if possible.

    Return the default order, too.
    """
    names = Names.of(read_field(memory.folder / "labels.jsonl", "text"))
    together = count_cooccurrence(memory.label_sets, memory.plan.labels)
    classifier = _read_classifier(memory) if CLASSIFIER in ranker.features else None
    LabelFacts(memory.label_counts, names, together, classifier).write(folder)
    (folder / RANKER).write_text(ranker.model_dump_json() + "\n", encoding="utf-8")
    print_status(f"ranker: {len(ranker.trees)} trees")
    probabilities, choice = reliable_probabilities(read_held_out(memory)), read_order(memory)
    if has_cross_encoder(memory):
        _write_cross_encoder(memory, folder, probabilities is not None)
    # Without probabilities, the ranker still orders the labels, but the order macro does not exist.
    if probabilities is None:
        return None, OrderChoice("score" if choice.order == "score" else "probability", None)
    return probabilities, choice


def _read_classifier(memory: Memory) -> Classifier:
    folder = memory.folder / _FOLDER
    try:
        return Classifier.open_with(lambda function, name, *rest: function(folder / name, *rest), memory.plan.labels)
    except BundleError as error:
        raise BuildError(f"{error}; run `recollect rank` again") from None


def has_cross_encoder(memory: Memory) -> bool:
    return (memory.folder / _FOLDER / CROSS_RANKER).is_file()


def _write_cross_encoder(memory: Memory, folder: Path, needs_probabilities: bool) -> None:
    """Write the second ranker with its probabilities, and its cross-encoder, into a bundle folder.

    Without reliable probabilities, the bundle gets none of it if the first ranker has some: an answer must not lose
    its probabilities because a cross-encoder read it.
    """
    source = memory.folder / _FOLDER
    file = read_ranker_file(source / CROSS_RANKER, CrossRankerFile)
    probabilities = reliable_probabilities(read_held_out(memory, _CROSS_HELD_OUT)) if needs_probabilities else None
    if needs_probabilities and probabilities is None:
        print_status("cross-encoder: left out, because its probabilities are not reliable")
        return
    for name in (CROSS_ENCODER, CROSS_TOKENIZER) if file.server is None else ():
        try:
            shutil.copyfile(source / name, folder / name)
        except OSError as error:
            raise BuildError(
                f"{source / name}: expected a file of a cross-encoder, found: {error.strerror}; run `recollect rank "
                "--cross-encoder` again"
            ) from None
    complete = file.model_copy(update={"probabilities": probabilities})
    (folder / CROSS_RANKER).write_text(complete.model_dump_json(by_alias=True) + "\n", encoding="utf-8")
    print_status(f"cross-encoder: {len(file.ranker.trees)} trees, for the first {file.candidates} labels")


def needs_words(ranker: RankerFile) -> bool:
    """Whether a ranker has features of a lexical index."""
    return not set(WORD_FEATURES).isdisjoint(ranker.features)
