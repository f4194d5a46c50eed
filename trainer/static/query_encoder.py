"""`--query-encoder static`: a static encoder of queries, distilled from the run's encoder.

The memory keeps the keys of the run's encoder, the teacher. The student learns from the texts of all instances and
labels, except those of held-out instances: tuning and ranking then measure it on texts that are new to it. The
vectors of all instances as queries are stored in the memory. This file is written last, so a memory that has it has a
finished student.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.core.system.files import save_array
from recollect.trainer.data.split import Entries, Split
from recollect.trainer.encoding.checkpoint import load_checkpoint, save_checkpoint
from recollect.trainer.encoding.encoder import Encoder, embed
from recollect.trainer.encoding.tokens import TokenBags
from recollect.trainer.errors import EncoderError, TrainingError
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.distillation import read_distillation, write_distillation
from recollect.trainer.memory.memory import QUERY_VECTORS, Memory, open_memory
from recollect.trainer.run_folder import RunFolder
from recollect.trainer.settings import STATIC
from recollect.trainer.static.distil import Lesson, distil
from recollect.trainer.static.pretrained import make_static
from recollect.trainer.train_settings import TrainSettings


def check_query_encoder(settings: TrainSettings, encoder: Encoder, instances: Split) -> None:
    """Check `--query-encoder` before the training.

    Raises:
        TrainingError: If the encoder is static already, if there is nothing to learn from, or if the run has a query
            encoder that the settings do not mention.
    """
    flag, folder = f"--query-encoder {settings.query_encoder}", RunFolder(settings.out)
    if settings.query_encoder != STATIC:
        if folder.query_encoder.is_dir() and not settings.overwrite:
            raise TrainingError(
                f"{flag}: expected a run without a query encoder, found {folder.query_encoder}; add --query-encoder "
                f"{STATIC}, choose another --out, or replace the run with --overwrite"
            )
        return
    if encoder.model.is_static:
        raise TrainingError(
            f"{flag}: expected an encoder with a transformer, found the static encoder {settings.encoder}, which is as "
            "fast already; omit the flag"
        )
    if encoder.served is not None:
        raise TrainingError(
            f"{flag}: expected an encoder with its own weights, which are distilled, found {settings.encoder}, whose "
            "vectors come from a server; omit the flag"
        )
    if len(instances) == 0:
        raise TrainingError(f"{flag}: {settings.dataset}: expected instances to learn from, found none; omit the flag")


def write_query_encoder(
    settings: TrainSettings, labels: Entries, instances: Split, device: str, report: Callable[[str], None]
) -> None:
    """Distil the query encoder of a run with a finished memory, unless the run has it already.

    Raises:
        TrainingError: If the run has a query encoder with other held-out instances, or the distillation fails.
    """
    folder = RunFolder(settings.out)
    memory, entries = open_memory(folder.memory), instances.entries
    labelled = np.diff(instances.labels.indptr) > 0
    held_out = HeldOutTexts.choose(
        entries.strings(), labelled, settings.validation_fraction, settings.seed, memory.held_out
    )
    origin: dict[str, object] = {"teacher_sha256": memory.plan.encoder_sha256, "held_out": held_out.as_json()}
    if memory.distilled is not None and folder.query_encoder.is_dir():
        _check_same_origin(folder, origin)
        report(f"{folder.query_encoder}: already done")
        return
    start, teacher = time.monotonic(), load_checkpoint(folder.checkpoint, device)
    untaught = held_out.mask(entries.strings(), len(entries))
    student, steps = _distil(teacher, memory, labels, instances, np.flatnonzero(untaught), settings.seed)
    queries = student.tokenise(entries.texts, student.config.max_length)
    vectors = embed(student.model, queries, student.dim, device)
    measured = {"steps": steps, "seconds": time.monotonic() - start}
    cosine = ""
    if untaught.any():
        measured["held_out_cosine"] = _mean_cosine(vectors[untaught], np.asarray(memory.instance_keys[untaught]))
        cosine = f", mean cosine {measured['held_out_cosine']:.3f} on {int(untaught.sum()):,} held-out texts"
    save_checkpoint(student.trained_without(held_out), folder.query_encoder)
    write_distillation(settings.out, {**origin, "measured": measured})
    _store_vectors(memory, vectors)
    report(f"{folder.query_encoder}: {steps:,} steps in {measured['seconds']:,.0f} s{cosine}")


def load_query_encoder(run: Path, memory: Memory, encoder: Encoder) -> Encoder:
    """Load the distilled encoder of queries. A run without one has one encoder for all texts.

    Raises:
        TrainingError: If the description of the query encoder is damaged.
        EncoderError: If the query encoder is unfinished, damaged, or distilled from another encoder.
    """
    folder = RunFolder(run)
    saved = read_distillation(run)
    if saved is None and memory.distilled is None:
        return encoder
    if saved is None or memory.distilled is None:
        found = "without its vectors" if memory.distilled is None else "its vectors alone"
        raise EncoderError(
            f"{folder.query_encoder}: expected a query encoder and {memory.folder / QUERY_VECTORS}, found {found}; "
            f"run the same `recollect train` again, or remove both"
        )
    student = load_checkpoint(folder.query_encoder, encoder.device)
    if saved["teacher_sha256"] != memory.plan.encoder_sha256 or student.dim != memory.plan.dim:
        raise EncoderError(
            f"{folder.query_encoder}: expected a query encoder that was distilled from the run's encoder, found one "
            "of another run; train again with --overwrite"
        )
    return student


def _check_same_origin(folder: RunFolder, origin: dict[str, object]) -> None:
    saved = read_distillation(folder.path)
    differs = [name for name in origin if saved is None or saved[name] != origin[name]]
    if differs:
        raise TrainingError(
            f"{folder.query_encoder}: expected this distillation, found one that differs in {', '.join(differs)}; "
            "continue with the same settings, choose another --out, or replace the run with --overwrite"
        )


def _distil(
    teacher: Encoder, memory: Memory, labels: Entries, instances: Split, held_out: Int[np.ndarray, " row"], seed: int
) -> tuple[Encoder, int]:
    """Distil a student, and count its steps."""
    config, texts = teacher.config, (instances.entries.texts, labels.texts)
    lengths = config.max_length, config.label_max_length
    student = make_static(teacher, f"{STATIC}:{config.name}", *lengths, texts)
    tables = [
        TokenBags.of(part, student.tokenizer, length, student.pad_id)
        for part, length in zip(texts, lengths, strict=True)
    ]
    taught = np.setdiff1d(np.arange(memory.plan.keys), held_out)
    truth = sparse.vstack([instances.labels.to_csr(len(labels)), sparse.eye_array(len(labels), dtype=bool)], "csr")
    lesson = Lesson(TokenBags.join(tables), _query_vectors(teacher, memory, labels), memory.keys, truth, taught)
    return student, distil(student.model, lesson, seed, student.device)


def _query_vectors(teacher: Encoder, memory: Memory, labels: Entries) -> Float[np.ndarray, "text dim"]:
    """The teacher's vectors of all instances and label texts as queries.

    Without adapter, head and prompts, the keys are these vectors. Otherwise a label's key is not the vector of a query,
    and the teacher encodes the label texts as queries.
    """
    same_prompt = teacher.config.query_prompt == teacher.config.label_prompt
    if teacher.model.adapter is None and teacher.model.head is None and same_prompt:
        return memory.keys
    encoded = teacher.encode(labels.texts.to_pylist(), teacher.config.label_max_length)
    return np.concatenate([np.asarray(memory.instance_keys, dtype=np.float32), encoded])


def _mean_cosine(first: Float[np.ndarray, "text dim"], second: Float[np.ndarray, "text dim"]) -> float:
    return float((first * second).sum(axis=1).mean())


def _store_vectors(memory: Memory, vectors: Float[np.ndarray, "instance dim"]) -> None:
    """Write the vectors of the instances. A tuning for other vectors is removed, so that it can be repeated."""
    (memory.folder / "tuning.json").unlink(missing_ok=True)
    path = memory.folder / QUERY_VECTORS
    incoming = path.with_name(f".{path.name}-incoming")
    save_array(incoming, np.ascontiguousarray(vectors, dtype=memory.plan.key_dtype))
    incoming.replace(path)
