"""`recollect train`: from a dataset to a run folder with a trained encoder and a tuned memory."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import torch

from recollect.core.system.console import print_status
from recollect.trainer.data.dataset import Dataset, open_named
from recollect.trainer.data.split import Split, fingerprint
from recollect.trainer.distributed import check_same_dataset, check_shared_folder, process_group
from recollect.trainer.encoding.checkpoint import (
    encoder_digest,
    load_checkpoint,
    load_encoder,
    load_head,
    save_checkpoint,
)
from recollect.trainer.encoding.encoder import Encoder, choose_device
from recollect.trainer.encoding.instance_texts import describe_instances
from recollect.trainer.encoding.label_texts import describe_unclear_labels
from recollect.trainer.encoding.lora import add_lora, require_linear_layers, require_peft
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.head import Head
from recollect.trainer.held_out import ALL, HeldOutTexts
from recollect.trainer.memory.key_sources import AdaptedKeys
from recollect.trainer.memory.label_keys import LabelInputs
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.memory.reuse import has_labels, open_earlier
from recollect.trainer.memory.tune import is_tuned, tune
from recollect.trainer.methods import METHODS
from recollect.trainer.modes import whole_encoder
from recollect.trainer.presets.preset import find_preset
from recollect.trainer.recipe import Recipe
from recollect.trainer.run_folder import RunFolder
from recollect.trainer.run_memory import Run
from recollect.trainer.settings import STATIC, TuneSettings
from recollect.trainer.static.pretrained import make_static
from recollect.trainer.static.query_encoder import check_query_encoder, write_query_encoder
from recollect.trainer.train_settings import TrainSettings
from recollect.trainer.training.memory_check import explain_out_of_memory, require_memory
from recollect.trainer.training.run_log import Stopwatch, peak_gpu_memory_bytes, peak_memory_bytes
from recollect.trainer.training.train import Task, train
from recollect.trainer.training.validation import Validation

# Width of the hidden layer of an adapter.
_ADAPTER_HIDDEN = 1_024
# Weight of the instances in the adapter's inputs for labels.
_INPUT_ALPHA = 0.5
# Without normalisation, validation tries these multiples of the loss's tau.
_TEMPERATURES = 0.5, 1.0, 2.0


def write_run(settings: TrainSettings, validated: HeldOutTexts | None = None) -> None:
    """Write a run folder, or continue an interrupted run with the same settings.

    Args:
        validated: The part of the held-out texts that chooses the checkpoint; None: all of them.

    Raises:
        DatasetError: If the dataset is missing or invalid.
        EncoderError: If the encoder cannot be loaded or the device is absent.
        TrainingError: If the dataset is too small, the loss diverges, or the folder holds another training.
        MemoryFolderError: If the folder holds a memory with another plan.
    """
    device = choose_device(settings.device)
    if settings.lora:
        require_peft(settings.lora)
    with explain_out_of_memory(), process_group(device) as ranks:
        dataset = open_named(settings, note=print_status if ranks.first else lambda _: None)
        instances = dataset.read_split("train")
        encoder = _load_encoder(settings, dataset, instances, device)
        if encoder.served is not None and settings.epochs != 0 and (found := whole_encoder(settings)):
            raise TrainingError(
                f"--encoder {settings.encoder}: expected --train adapter, --train head or --epochs 0, because nothing "
                f"trains the model of a server, found {found}"
            )
        check_query_encoder(settings, encoder, instances)
        run = Run(settings, dataset, instances, encoder, RunFolder(settings.out), ranks, validated)
        run = dataclasses.replace(run, encoder=_with_earlier_head(run))
        if ranks.size > 1:
            check_same_dataset(settings.dataset, fingerprint(dataset.labels, instances), ranks, device)
        run.report(f"{settings.dataset}: {len(instances):,} instances, {len(dataset.labels):,} labels")
        for line in describe_unclear_labels(encoder, map(str, dataset.labels.texts)) if ranks.first else ():
            print_status(line)
        for line in describe_instances(encoder, instances.entries.texts) if ranks.first else ():
            print_status(line)
        if settings.preset is not None:
            run.report(find_preset(settings.preset).describe_variant(len(instances), len(dataset.labels)))
        run, training = (run, None) if settings.epochs == 0 else _plan_training(run)
        with run.folder.lock() if ranks.first else contextlib.nullcontext():
            check_shared_folder(settings.out, ranks, device)
            if training is None:
                _run_without_training(run)
            elif settings.trained == "full":
                _train_encoder(run, *training)
            else:
                _train_above(run, *training)
            if training is not None and ranks.first:
                run.folder.remove_unfinished()
            if settings.query_encoder == STATIC and ranks.first:
                write_query_encoder(settings, dataset.labels, instances, device, run.report)
            if training is not None and ranks.first:
                _tune_memory(run, training[1])


def _load_encoder(settings: TrainSettings, dataset: Dataset, instances: Split, device: str) -> Encoder:
    """The encoder at the start of the training. A static encoder weighs its tokens by the texts of the dataset."""
    lengths = settings.max_length, settings.label_max_length
    if settings.encoder == STATIC:
        shortest = 3, 3  # the source encodes single tokens only
        source = load_encoder(settings.static_from, settings.pooling, *shortest, device, "--static-from")
        texts = [instances.entries.texts, dataset.labels.texts]
        encoder = make_static(source, f"{STATIC}:{settings.static_from}", *lengths, texts)
    else:
        prompts = settings.query_prompt, settings.label_prompt
        encoder = load_encoder(settings.encoder, settings.pooling, *lengths, device, "--encoder", *prompts)
    return encoder if settings.normalise else encoder.without_normalisation()


def _with_earlier_head(run: Run) -> Encoder:
    """The encoder with the head of the checkpoint that the run starts from, if it fits, or else a line that says so.

    A head has weights for each label, by its position, so a memory without training uses it for the same labels only.
    """
    encoder, checkpoint = run.encoder, Path(run.settings.encoder)
    head = load_head(checkpoint, encoder.model.dim)
    if head is None:
        return encoder
    if run.settings.epochs != 0:
        reason = "a training makes a new one"
    elif not has_labels(RunFolder(checkpoint.parent).memory, run.dataset.labels):
        reason = f"it belongs to other labels than those of {run.settings.dataset}; train again to have one"
    else:
        return encoder.with_adapter(encoder.model.adapter, head, encoder.config.label_alpha)
    run.report(f"{checkpoint}: its head ({head.kind}) is not used: {reason}")
    return encoder


def _plan_training(run: Run) -> tuple[Run, tuple[Recipe, np.ndarray]]:
    """Make the recipe, and a mask of the held-out instances.

    Returns:
        The run, whose encoder records the held-out texts; the recipe, and the mask.
    """
    settings, labels = run.settings, len(run.dataset.labels)
    if settings.lora:
        require_linear_layers(run.encoder.model.transformer, settings.lora)
    pairs = len(run.instances.labels.indices)
    if labels < 2 or pairs == 0:
        found = f"{labels} label" if labels < 2 else "no instance with a label"
        raise TrainingError(
            f"{settings.dataset}: expected at least two labels, and instances with labels, found {found}; "
            "use --epochs 0 to write a memory without training"
        )
    if settings.vectors is not None:
        _check_vectors(run, settings.vectors)
    earlier, entries = run.encoder.config.held_out, run.instances.entries
    labelled = np.diff(run.instances.labels.indptr) > 0
    chosen = HeldOutTexts.choose(entries.strings(), labelled, settings.validation_fraction, settings.seed, earlier)
    held_out = chosen.mask(entries.strings(), len(entries))
    if earlier != ALL:
        run.report(_describe_held_out(settings, int((held_out & labelled).sum()), int(labelled.sum())))
    if not held_out.any():
        _refuse_without_held_out(settings)
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
        static=run.encoder.model.is_static,
    )
    if settings.overwrite or not run.folder.is_trained():
        _check_head(run, recipe)
    return dataclasses.replace(run, encoder=run.encoder.trained_without(chosen)), (recipe, held_out)


def _describe_held_out(settings: TrainSettings, held_out: int, labelled: int) -> str:
    """A status line about the held-out instances of a training that starts from a trained encoder."""
    if held_out or settings.validation_fraction == 0:
        found = f"{held_out:,} of {labelled:,} instances held out; the encoder has learnt from none of them"
    else:
        found = "no instances held out, because the encoder's own training held out none of them, so nothing can be "
        found += "validated, tuned or calibrated"
    return f"{settings.encoder}: {found}"


def _refuse_without_held_out(settings: TrainSettings) -> None:
    """Refuse given flags that need held-out instances if the fraction of the dataset is less than one instance."""
    flag = "--validate-lambda" if "validate_lambda" in settings.model_fields_set else "--tune"
    if flag != "--tune" or settings.tune == "yes":
        raise TrainingError(
            f"{flag}: expected held-out instances, found none with --validation-fraction "
            f"{settings.validation_fraction}; choose a larger one, or omit {flag}"
        )


def _check_vectors(run: Run, given: Path) -> None:
    """Check that --vectors has vectors of the frozen encoder, before any file is written."""
    frozen = run.encoder.without_adapter()
    open_earlier(given, frozen, encoder_digest(frozen), "float32")


def _check_head(run: Run, recipe: Recipe) -> None:
    """Check that the method's head fits into memory, before any file is written."""
    with torch.device("meta"):  # on `meta`, tensors have a size but no storage
        head = _create_head(run, recipe)
        if head is not None and head.table is not None:
            head.table.divide(run.ranks)
    if head is not None:
        what = f"--method {recipe.method}: {len(run.dataset.labels):,} labels of {head.dim} dimensions"
        require_memory(head, what, run.encoder.device)


def _run_without_training(run: Run) -> None:
    """Save the encoder as it is, and write its memory."""
    folder, encoder = run.folder, run.encoder
    plan = run.plan(encoder, run.settings.key_dtype)
    is_bare = encoder.model.adapter is None and encoder.model.head is None
    reusable = run.reusable(encoder, plan) if is_bare else None
    if not is_bare and run.settings.vectors is not None:
        _check_vectors(run, run.settings.vectors)
    if run.ranks.first:
        resumed = folder.begin_untrained(plan, run.settings.overwrite)
        if not resumed or not folder.checkpoint.is_dir():
            save_checkpoint(encoder, folder.checkpoint)
    if is_bare:
        encoder = run.in_fastest_precision(encoder, folder.memory, reusable)
        run.write_memory(run.plan(encoder, run.settings.key_dtype), run.texts(encoder, reusable))
    elif run.has_intact_memory(folder.memory):
        run.report_existing_memory(plan)
    else:
        vectors, entries = run.frozen_vectors(encoder.without_adapter()), run.instances.entries
        held_out = encoder.config.held_out.mask(entries.strings(), len(entries))
        label_inputs = _label_inputs(run, encoder.config.label_alpha or 0.0, vectors, held_out)
        plan = run.plan(encoder.in_precision(vectors.plan.precision), run.settings.key_dtype)
        run.write_memory(plan, _keys_above(run, encoder, vectors, label_inputs))


def _train_encoder(run: Run, recipe: Recipe, held_out: np.ndarray) -> None:
    """Fine-tune the encoder, then write the memory with the best checkpoint."""
    encoder, config = run.encoder, run.encoder.config
    if _begin_training(run, recipe):
        watch = Stopwatch()
        with watch("tokenise"):
            queries = run.tokens("queries", run.instances.entries, config.max_length)
            labels = run.tokens("labels", run.dataset.labels, config.label_max_length)
        adapter = encoder.model.adapter
        if config.label_alpha:
            run.report(
                f"{config.name}: its adapter read label texts mixed with instances, and reads the texts alone now"
            )
        encoder = encoder.with_adapter(adapter, _create_head(run, recipe), None if adapter is None else 0.0)
        model = encoder.model.trainable()
        if recipe.lora:
            model.pooler.requires_grad_(False)
            add_lora(model.transformer, recipe.lora, recipe.seed)
        task = Task(
            model,
            queries,
            labels,
            run.instances.labels,
            run.instances.filtered,
            _validation(run, recipe, held_out),
            save_best=lambda: save_checkpoint(encoder, run.folder.checkpoint),
        )
        _train(run, recipe, task, watch)
    best = run.in_fastest_precision(load_checkpoint(run.folder.checkpoint, encoder.device), run.folder.memory)
    run.write_memory(run.plan(best, run.settings.key_dtype), run.texts(best))


def _train_above(run: Run, recipe: Recipe, held_out: np.ndarray) -> None:
    """Train an adapter, a head or both on the vectors of the frozen encoder, then write the memory with them.

    The frozen encoder encodes each text once.
    """
    must_train = _begin_training(run, recipe)
    if not must_train and run.has_intact_memory(run.folder.memory):
        best = load_checkpoint(run.folder.checkpoint, run.encoder.device)
        run.report_existing_memory(run.plan(best, run.settings.key_dtype))
        return
    frozen, watch = run.encoder.without_adapter(), Stopwatch()
    with watch("encode"):
        vectors = run.frozen_vectors(frozen)
    alpha = (run.encoder.config.label_alpha or _INPUT_ALPHA) if recipe.label_inputs == "enriched" else 0.0
    label_inputs = _label_inputs(run, alpha, vectors, held_out)
    if must_train:
        adapter = run.encoder.model.adapter
        if recipe.train == "head":
            if adapter is not None:
                adapter.freeze()
        elif adapter is None:
            adapter = _create_adapter(run, frozen.dim)
        encoder = frozen.with_adapter(adapter, _create_head(run, recipe), alpha)
        task = Task(
            encoder.vector_model(),
            VectorTable(torch.from_numpy(np.array(vectors.instance_keys, dtype=np.float32))),
            label_inputs,
            run.instances.labels,
            run.instances.filtered,
            _validation(run, recipe, held_out),
            save_best=lambda: save_checkpoint(encoder, run.folder.checkpoint),
        )
        _train(run, recipe, task, watch)
    best = load_checkpoint(run.folder.checkpoint, run.encoder.device).in_precision(vectors.plan.precision)
    run.write_memory(run.plan(best, run.settings.key_dtype), _keys_above(run, best, vectors, label_inputs))


def _begin_training(run: Run, recipe: Recipe) -> bool:
    """Prepare the run folder. Return whether the training is not finished yet."""
    settings, folder = run.settings, run.folder
    return run.ranks.compute_first(lambda: folder.begin_training(recipe, settings.resume, settings.overwrite))


def _create_adapter(run: Run, dim: int) -> Adapter:
    torch.manual_seed(run.settings.seed)
    return Adapter(dim, _ADAPTER_HIDDEN)


def _create_head(run: Run, recipe: Recipe) -> Head | None:
    """Create the method's head for the labels of this dataset; None if the method has no head."""
    torch.manual_seed(run.settings.seed)
    return METHODS[recipe.method].make_head(run.encoder.model.dim, len(run.dataset.labels), recipe.options)


def _keys_above(run: Run, encoder: Encoder, vectors: Memory, label_inputs: LabelInputs) -> AdaptedKeys:
    """The keys that adapter and head make from the vectors of the frozen encoder."""
    return AdaptedKeys(encoder.vector_model(), vectors.instance_keys, label_inputs, encoder.device, run.ranks)


def _label_inputs(run: Run, alpha: float, vectors: Memory, held_out: np.ndarray) -> LabelInputs:
    """The adapter's inputs for labels. Held-out instances are left out, so that validation on them stays fair."""
    return LabelInputs.of(
        vectors.label_keys(0.0)[:], vectors.instance_keys, run.instances.labels.where(~held_out), alpha
    )


def _validation(run: Run, recipe: Recipe, held_out: np.ndarray) -> Validation:
    instances, labels = run.instances, len(run.dataset.labels)
    validation = Validation(
        held_out,
        instances.labels,
        labels,
        run.encoder.device,
        instances.filtered,
        lambdas=recipe.validate_lambda,
        queries=None if run.validated is None else run.validated.mask(instances.entries.strings(), len(instances)),
    )
    if recipe.normalise:
        return validation
    return dataclasses.replace(validation, temperatures=tuple(recipe.temperature * each for each in _TEMPERATURES))


def _train(run: Run, recipe: Recipe, task: Task, watch: Stopwatch) -> None:
    settings = run.settings
    run.report(
        f"train: {recipe.method}, {recipe.train}, {recipe.steps:,} steps of {recipe.batch_size:,} queries, "
        f"{int(task.validation.held_out.sum()):,} instances held out"
    )
    trainable = sum(weight.numel() for weight in task.model.parameters() if weight.requires_grad)
    progress = train(task, recipe, run.folder.path, run.ranks, watch, settings.save_minutes)
    if run.ranks.first:
        measured = {
            "seconds": progress.seconds,
            "peak_memory_bytes": peak_memory_bytes(),
            "trainable_parameters": trainable,
        }
        if gpu_bytes := peak_gpu_memory_bytes():
            measured["peak_gpu_memory_bytes"] = gpu_bytes
        run.folder.write_training(recipe, progress, measured, dict(watch.seconds))
    progress = run.ranks.broadcast_object(progress)  # the other ranks wait until the file is written
    best = "" if progress.best is None else f", validation nDCG@5 {progress.best:.2f}"
    run.report(f"train: best after {progress.best_step:,} of {progress.step:,} steps{best}")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in watch.shares().items())
    run.report(f"train: {shares}; peak memory {peak_memory_bytes() / 2**20:,.0f} MiB")


def _tune_memory(run: Run, held_out: np.ndarray) -> None:
    """Tune the memory on the held-out instances, unless it is tuned or the settings disable tuning."""
    settings = run.settings
    wanted = METHODS[settings.method].tuned if settings.tune == "auto" else settings.tune == "yes"
    if not wanted or not held_out.any() or is_tuned(open_memory(run.folder.memory)):
        return
    best = tune(TuneSettings(run=run.folder.path, device=run.settings.device)).best
    run.report(
        f"tune: lambda {best.lambda_:g}, tau {best.temperature:g}, b {best.top_b}, alpha {best.label_key_alpha:g}: "
        f"nDCG@5 {best.score:.2f} on held-out instances"
    )
