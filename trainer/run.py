"""From a dataset to a run folder: train an encoder, unless told not to, then remember the dataset with it."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainer.checkpoint import encoder_digest, load_checkpoint, load_encoder, save_checkpoint
from trainer.data.dataset import Dataset, open_dataset
from trainer.data.split import Split
from trainer.device_memory import told_when_full
from trainer.encoder import Encoder, choose_device
from trainer.errors import MemoryFolderError, TrainingError
from trainer.flags import check_flags
from trainer.heads.adapter import Adapter
from trainer.heads.head import Head
from trainer.key_sources import AdaptedKeys, EncodedTexts, KeySource
from trainer.label_inputs import LabelInputs
from trainer.memory import (
    KeyDtype,
    Memory,
    MemoryPlan,
    check_same,
    differences,
    is_complete,
    open_memory,
    write_memory,
)
from trainer.methods import METHODS
from trainer.ranks import Ranks, joined_ranks
from trainer.recipe import Recipe
from trainer.room import check_room
from trainer.run_folder import Finished, RunFolder
from trainer.settings import TrainSettings, TuneSettings
from trainer.stopwatch import Stopwatch, peak_memory_bytes
from trainer.tokens import VectorTable
from trainer.train import Machine, Task, train
from trainer.tune import tune
from trainer.validation import Validation, hold_out

# Width of an adapter's hidden layer.
_HIDDEN = 1_024
# Weight of the instances in what an adapter reads of a label.
_INPUT_ALPHA = 0.5


@dataclass(frozen=True)
class Run:
    """What one call of `recollect train` works with."""

    settings: TrainSettings
    dataset: Dataset
    instances: Split
    encoder: Encoder
    folder: RunFolder
    ranks: Ranks

    def plan(self, encoder: Encoder, key_dtype: KeyDtype) -> MemoryPlan:
        return MemoryPlan.of(self.dataset.labels, self.instances, encoder, encoder_digest(encoder), key_dtype)

    def texts(self, encoder: Encoder) -> EncodedTexts:
        return EncodedTexts(encoder, self.dataset.labels, self.instances.entries, self.ranks)

    def say(self, message: str) -> None:
        if self.ranks.first:
            print(message, file=sys.stderr)  # noqa: T201


def write_run(settings: TrainSettings) -> None:
    """Write a run folder, going on where an interrupted run with the same settings stopped.

    Raises:
        DatasetError: If the dataset breaks its contract.
        EncoderError: If the encoder cannot be loaded or the device is absent.
        TrainingError: If there is nothing to learn, the loss diverges, or the folder holds another training.
        MemoryFolderError: If the folder holds a memory made of something else.
    """
    check_flags(settings)
    device = choose_device(settings.device)
    with told_when_full(), joined_ranks(device) as ranks:
        dataset = open_dataset(settings.dataset, settings.format)
        instances = dataset.read_split("train")
        encoder = load_encoder(
            settings.encoder, settings.pooling, settings.max_length, settings.label_max_length, device
        )
        run = Run(settings, dataset, instances, encoder, RunFolder(settings.out), ranks)
        run.say(f"{settings.dataset}: {len(instances):,} instances, {len(dataset.labels):,} labels")
        plan = None if settings.epochs == 0 else _plan_training(run)
        with run.folder.alone() if ranks.first else contextlib.nullcontext():
            if plan is None:
                _remember_untrained(run)
            elif settings.train == "adapter":
                _train_adapter(run, *plan)
            else:
                _train_whole(run, *plan)
            if plan is not None and ranks.first:
                run.folder.drop_unfinished()
                _tune(run, plan[1])


def _remember_untrained(run: Run) -> None:
    folder, plan = run.folder, run.plan(run.encoder, run.settings.key_dtype)
    if run.ranks.first:
        same = folder.begin_untrained(plan, run.settings.overwrite)
        if not same or not folder.checkpoint.is_dir():
            save_checkpoint(run.encoder, folder.checkpoint)
    _remember(run, plan, run.texts(run.encoder))


def _train_whole(run: Run, recipe: Recipe, held_out: np.ndarray) -> None:
    """Fine-tune the encoder, then encode everything with the best checkpoint."""
    encoder, config = run.encoder, run.encoder.config
    if _begins(run, recipe):
        watch = Stopwatch()
        with watch("tokenise"):
            queries = encoder.tokenise(run.instances.entries.texts, config.max_length)
            labels = encoder.tokenise(run.dataset.labels.texts, config.label_max_length, "labels")
        encoder = encoder.with_adapter(encoder.model.adapter, _new_head(run, recipe))
        task = Task(
            encoder.model.learning(),
            queries,
            labels,
            run.instances.labels,
            _validation(run, held_out),
            keep=lambda: save_checkpoint(encoder, run.folder.checkpoint),
        )
        _train(run, recipe, task, watch)
    best = load_checkpoint(run.folder.checkpoint, encoder.device)
    _remember(run, run.plan(best, run.settings.key_dtype), run.texts(best))


def _train_adapter(run: Run, recipe: Recipe, held_out: np.ndarray) -> None:
    """Train a head on the vectors of the frozen encoder, which encodes everything once; the head makes the keys."""
    begins = _begins(run, recipe)
    if not begins and _is_whole(run, run.folder.memory):
        best = load_checkpoint(run.folder.checkpoint, run.encoder.device)
        _say_done(run, run.plan(best, run.settings.key_dtype))
        return
    frozen, watch = run.encoder.without_adapter(), Stopwatch()
    with watch("encode"):
        vectors = _frozen_vectors(run, frozen)
    label_inputs = _label_inputs(run, recipe, vectors, held_out)
    if begins:
        adapter = run.encoder.model.adapter or _new_adapter(run, frozen.dim)
        encoder = frozen.with_adapter(adapter, _new_head(run, recipe))
        task = Task(
            encoder.above(),
            VectorTable(_tensor(vectors.instance_keys)),
            label_inputs,
            run.instances.labels,
            _validation(run, held_out),
            keep=lambda: save_checkpoint(encoder, run.folder.checkpoint),
        )
        _train(run, recipe, task, watch)
    best = load_checkpoint(run.folder.checkpoint, run.encoder.device)
    source = AdaptedKeys(best.above(), vectors.instance_keys, label_inputs, best.device, run.ranks)
    _remember(run, run.plan(best, run.settings.key_dtype), source)


def _plan_training(run: Run) -> tuple[Recipe, np.ndarray]:
    """The recipe, and which instances are held out.

    Raises:
        TrainingError: If the dataset is too small to learn from, or its labels are too many for the memory there is.
    """
    settings, labels = run.settings, len(run.dataset.labels)
    pairs = len(run.instances.labels.indices)
    if labels < 2 or pairs == 0:
        found = f"{labels} label" if labels < 2 else "no instance with a label"
        raise TrainingError(
            f"{settings.dataset}: expected at least two labels, and instances that have them, found {found}; "
            "there is nothing to tell apart: use --epochs 0"
        )
    if settings.vectors is not None:
        _check_vectors(run.plan(run.encoder.without_adapter(), "float32"), settings.vectors)
    held_out = hold_out(run.instances.labels, settings.validation_fraction, settings.seed)
    start = run.plan(run.encoder, "float32")
    recipe = Recipe.of(
        settings,
        encoder=start.encoder,
        encoder_sha256=start.encoder_sha256,
        dataset_sha256=start.dataset_sha256,
        instances=int((~held_out).sum()),
        labels=labels,
        device=run.encoder.device,
        ranks=run.ranks.size,
    )
    if settings.overwrite or not run.folder.is_trained():
        _check_head(run, recipe)
    return recipe, held_out


def _begins(run: Run, recipe: Recipe) -> bool:
    settings, folder = run.settings, run.folder
    return bool(
        run.ranks.agree(folder.begin_training(recipe, settings.resume, settings.overwrite) if run.ranks.first else None)
    )


def _validation(run: Run, held_out: np.ndarray) -> Validation:
    return Validation(held_out, run.instances.labels, len(run.dataset.labels), run.settings.alpha, run.encoder.device)


def _train(run: Run, recipe: Recipe, task: Task, watch: Stopwatch) -> None:
    settings = run.settings
    run.say(
        f"train: {recipe.method}, {recipe.train}, {recipe.steps:,} steps of {recipe.batch_size:,} queries, "
        f"{int(task.validation.held_out.sum()):,} instances held out"
    )
    machine = Machine(run.ranks, run.encoder.device, settings.save_minutes)
    learnt = sum(weight.numel() for weight in task.model.parameters() if weight.requires_grad)
    progress = train(task, recipe, run.folder.path, machine, watch)
    if run.ranks.first:
        run.folder.write_training(recipe, Finished(progress, peak_memory_bytes(), learnt))
    progress = run.ranks.agree(progress)  # the other ranks wait until all is written
    best = "" if progress.best is None else f", validation nDCG@5 {progress.best:.2f}"
    run.say(f"train: best after {progress.best_step:,} of {progress.step:,} steps{best}")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in watch.shares().items())
    run.say(f"train: {shares}; peak memory {peak_memory_bytes() / 2**20:,.0f} MiB")


def _remember(run: Run, plan: MemoryPlan, source: KeySource) -> None:
    memory = run.folder.memory
    if _is_whole(run, memory):
        _say_done(run, plan)
        return
    start = time.monotonic()
    made = write_memory(memory, plan, run.dataset.labels, run.instances, source, run.ranks, run.settings.alpha)
    rate = made / (time.monotonic() - start)
    run.say(f"{memory}: {plan.keys:,} keys, {made:,} made now at {rate:,.0f} keys/s")


def _tune(run: Run, held_out: np.ndarray) -> None:
    """Tune a memory that never was, if that is asked for; only what training held out is asked."""
    settings, memory = run.settings, run.folder.memory
    asked = METHODS[settings.method].tuned if settings.tune == "auto" else settings.tune == "yes"
    if not asked or not held_out.any() or (memory / "tuning.json").is_file():
        return
    best = tune(TuneSettings(run=run.folder.path)).best
    run.say(
        f"tune: lambda {best.lambda_:g}, tau {best.temperature:g}, b {best.top_b}, alpha {best.label_key_alpha:g}: "
        f"nDCG@5 {best.score:.2f} on what was held out"
    )


def _is_whole(run: Run, memory: Path) -> bool:
    """Whether a memory is finished; one that was, but does not open any more, is removed to be made again."""
    if run.ranks.first and is_complete(memory):
        try:
            open_memory(memory)
        except MemoryFolderError:
            run.say(f"{memory}: finished, but damaged; made again")
            shutil.rmtree(memory)
    return bool(run.ranks.agree(is_complete(memory)))


def _say_done(run: Run, plan: MemoryPlan) -> None:
    """A finished memory is left alone, for `recollect tune` may have changed its defaults.

    Raises:
        MemoryFolderError: If it is not the memory that was asked for.
    """
    memory = open_memory(run.folder.memory)
    check_same(memory.folder, plan, memory.plan)
    alpha = memory.defaults["label_key_alpha"]
    run.say(f"{memory.folder}: already done, {plan.keys:,} keys, label_key_alpha {alpha:g}")


def _frozen_vectors(run: Run, frozen: Encoder) -> Memory:
    """The frozen encoder's vectors of everything: those the user has, or made here."""
    plan, given = run.plan(frozen, "float32"), run.settings.vectors
    if given is None:
        if not _is_whole(run, run.folder.frozen):
            write_memory(run.folder.frozen, plan, run.dataset.labels, run.instances, run.texts(frozen), run.ranks)
        return open_memory(run.folder.frozen)
    return _check_vectors(plan, given)


def _check_vectors(plan: MemoryPlan, given: Path) -> Memory:
    memory = open_memory(given)
    if differs := differences(plan, memory.plan):
        raise MemoryFolderError(
            f"--vectors {given}: expected the float32 keys that this encoder makes of this dataset, found a memory "
            f"that differs in {', '.join(differs)}; leave the flag out, or make one with --epochs 0"
        )
    return memory


def _label_inputs(run: Run, recipe: Recipe, vectors: Memory, held_out: np.ndarray) -> LabelInputs:
    """What the adapter reads of each label; of what was held out nothing, so that it can still be asked."""
    alpha = _INPUT_ALPHA if recipe.label_inputs == "enriched" else 0.0
    return LabelInputs.of(
        vectors.label_keys(0.0)[:], vectors.instance_keys, run.instances.labels.where(~held_out), alpha
    )


def _new_adapter(run: Run, dim: int) -> Adapter:
    torch.manual_seed(run.settings.seed)
    return Adapter(dim, _HIDDEN)


def _check_head(run: Run, recipe: Recipe) -> None:
    """Refuse a method whose part for this dataset's labels does not fit, before anything is written.

    Raises:
        TrainingError: If the memory that is free does not hold it.
    """
    with torch.device("meta"):  # its size, before it is made
        head = _new_head(run, recipe)
    if head is not None:
        what = f"--method {recipe.method}: {len(run.dataset.labels):,} labels of {head.dim} dimensions"
        check_room(head, what, run.encoder.device)


def _new_head(run: Run, recipe: Recipe) -> Head | None:
    """What the method adds above the encoder, for this dataset's labels."""
    make = METHODS[recipe.method].head
    if make is None:
        return None
    torch.manual_seed(run.settings.seed)
    return make(run.encoder.model.dim, len(run.dataset.labels), recipe.options)


def _tensor(vectors: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(vectors, dtype=np.float32))
