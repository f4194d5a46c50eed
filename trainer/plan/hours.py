"""The hours of a training, from the speed of a trial and the speed of a search."""

from __future__ import annotations

import math
import time

import numpy as np

from recollect.trainer.memory.search import nearest
from recollect.trainer.plan.memory import Sizes
from recollect.trainer.plan.trial import STEPS, Trial
from recollect.trainer.recipe import Recipe

# Approximate mining compares a query with a sixteenth of the labels (`recollect.trainer.memory.search`).
_SEARCHED_SHARE = {"exact": 1.0, "approximate": 1 / 16}
# The trial validates before its first step and after its last step.
_TRIAL_VALIDATIONS = 2
_TIMED_QUERIES, _TIMED_KEYS = 512, 8_192


def estimate_hours(
    recipe: Recipe, sizes: Sizes, of_trial: Sizes, trial: Trial, held_out: int, comparisons_per_second: float
) -> dict[str, float]:
    """Estimate the hours of each activity.

    Each rank is assumed to be as fast as the trial, and exchanges between ranks to take no time.

    Args:
        recipe: The recipe of the training.
        sizes: The sizes of the training.
        of_trial: The sizes of the trial.
        trial: The measurements of the trial.
        held_out: Number of validation queries.
        comparisons_per_second: Speed of a search, in pairs of a query and a key.
    """
    seconds, rows = trial.seconds, (sizes.instances + sizes.labels) / sizes.ranks
    in_trial, own_instances = trial.instances + trial.labels, sizes.instances / sizes.ranks
    per_epoch = math.ceil((sizes.instances - held_out) / recipe.batch_size)

    step = seconds["gradient"] + seconds.get("batch", 0)
    step *= _own_texts(sizes) / _own_texts(of_trial)
    step += seconds["optimizer"] * sizes.trained_bytes / of_trial.trained_bytes
    step /= STEPS
    steps = min(recipe.steps, math.ceil(recipe.max_seconds / step)) if recipe.max_seconds else recipe.steps
    epochs = math.ceil(steps / per_epoch)

    encoding = rows * seconds["validate"] / _TRIAL_VALIDATIONS / in_trial
    validations = 1 + math.ceil(steps / (recipe.validate_every or per_epoch)) if held_out else 0
    minings = math.ceil(max(0, steps - recipe.mine_from) / recipe.mine_every) if recipe.mines else 0
    clusterings = math.ceil(max(0, epochs - recipe.cluster_from) / recipe.cluster_every) if recipe.clusters else 0
    # Minings and clusterings at the end of an epoch use the keys of the validation.
    alone = minings if recipe.mine_every % per_epoch else 0
    mined = own_instances * sizes.labels * _SEARCHED_SHARE[recipe.mine_search] / comparisons_per_second
    answered = held_out * rows / comparisons_per_second
    found = {
        "encode with the frozen encoder": rows * seconds.get("encode", 0) / in_trial,
        "steps": steps * step,
        "validate": validations * (encoding + answered),
        "mine": alone * encoding + minings * mined,
        "cluster": clusterings * seconds.get("cluster", 0) * own_instances / trial.instances,
        "start the head": encoding if sizes.head_bytes else 0,
        "write the memory": encoding,
    }
    return {name: value / 3_600 for name, value in found.items() if value}


def measure_search(dim: int, device: str) -> float:
    """Measure an exact search: comparisons of a query with a key in a second, on one rank."""
    random = np.random.default_rng(0)
    queries, keys = (random.standard_normal((rows, dim)).astype(np.float32) for rows in (_TIMED_QUERIES, _TIMED_KEYS))
    nearest(queries, keys, 50, device)  # the first call starts threads and allocates memory
    start = time.perf_counter()
    nearest(queries, keys, 50, device)
    return _TIMED_QUERIES * _TIMED_KEYS / (time.perf_counter() - start)


def _own_texts(sizes: Sizes) -> float:
    return (sizes.batch + sizes.pool) / sizes.ranks
