"""The ranker of a bundle: a copy of the run's ranker, the names of the labels, and calibrated probabilities."""

from __future__ import annotations

from pathlib import Path

from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.errors import BuildError
from recollect.index_builder.ranking.artefact import has_ranker, read_held_out, read_ranker
from recollect.index_builder.ranking.calibrate import fit_probabilities
from recollect.index_builder.settings import BuildSettings, Lexical
from recollect.service.bundle.files import RANKER
from recollect.service.bundle.manifest import Probabilities
from recollect.service.console import print_status
from recollect.service.ranking.features import WORD_FEATURES
from recollect.service.ranking.model import RankerFile
from recollect.service.ranking.names import Names
from recollect.trainer.memory.memory import Memory


def choose_ranker(memory: Memory, settings: BuildSettings) -> RankerFile | None:
    """The ranker that the bundle gets; None if the run has none, or `--rank` is off.

    Raises:
        BuildError: If the ranker is damaged, was fitted for another memory, or needs the lexical index that
            `--lexical off` leaves out.
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


def write_bundle_ranker(memory: Memory, folder: Path, ranker: RankerFile) -> Probabilities | None:
    """Write the ranker's files into a bundle folder, and calibrate its probabilities on held-out texts.

    Raises:
        BuildError: If the memory's texts or the logits of the held-out texts are damaged.
    """
    (folder / RANKER).write_text(ranker.model_dump_json() + "\n", encoding="utf-8")
    Names.of(read_field(memory.folder / "labels.jsonl", "text")).write(folder)
    probabilities = fit_probabilities(read_held_out(memory))
    if probabilities is not None:
        print_status(
            f"ranker: {len(ranker.trees)} trees; {probabilities.calibration.method} calibration, ECE@5 "
            f"{probabilities.metrics['ECE@5']:.3f} on {probabilities.texts:,} held-out texts"
        )
    return probabilities


def needs_words(ranker: RankerFile) -> bool:
    """Whether a ranker has features of a lexical index."""
    return not set(WORD_FEATURES).isdisjoint(ranker.features)
