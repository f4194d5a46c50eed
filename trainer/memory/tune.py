"""Tuning: choose lambda, tau, b and the alpha of label keys on instances of the memory.

RAE-XMC leaves the choice of lambda from data to future work. The queries are instances of the memory
that the training held out. Tuning leaves each query out of the memory: the query does not vote for itself and is not
part of the means of its labels. The memory stores the vectors of queries, so tuning encodes no text. For each query and
alpha, one search is enough for all values of lambda, tau and b.

Leaving a query out of the memory does not undo its use in training: training moves a query closer to its labels, and an
adapter may use the query in the inputs of its labels. So instances from which a run has learnt are never queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from recollect.core.system.console import with_progress
from recollect.core.system.files import read_json, write_json
from recollect.trainer.encoding.encoder import choose_device
from recollect.trainer.errors import TrainingError
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.inference import InferenceSetting, predict
from recollect.trainer.memory.left_out import MORE_HELD_OUT, choose_queries, instance_neighbours, label_neighbours
from recollect.trainer.memory.memory import DEFAULTS, Memory, open_memory, write_defaults
from recollect.trainer.metrics import PairedGain, propensity_weights, query_scores
from recollect.trainer.settings import TuneSettings


@dataclass(frozen=True)
class Trial:
    """One combination of values of lambda, tau, b and alpha, and its score: the metric in percent."""

    lambda_: float
    temperature: float
    top_b: int
    label_key_alpha: float
    score: float

    def as_json(self) -> dict[str, float]:
        return {name.removesuffix("_"): value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Tuning:
    """The result of tuning.

    Attributes:
        best: The best trial that is better than `before` by more than the standard error of the gain, else `before`.
            Its values are the new defaults.
        gain: From `before` to `best` on the queries, in percent; `best` was chosen on the same queries.
    """

    metric: str
    queries: int
    before: Trial
    best: Trial
    gain: PairedGain
    trials: list[Trial]

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "queries": self.queries,
            "before": self.before.as_json(),
            "best": self.best.as_json(),
            "gain": self.gain.mean,
            "standard_error": self.gain.error if math.isfinite(self.gain.error) else None,
            "trials": [trial.as_json() for trial in self.trials],
        }


def tune(settings: TuneSettings, held_out: HeldOutTexts | None = None) -> Tuning:
    """Try all combinations of the given values, and write the best one as the memory's defaults.

    The previous defaults are tried too. They stay unless a combination is better by more than the standard error of its
    gain, paired over the queries: with few queries, many combinations differ by chance.

    Raises:
        MemoryFolderError: If the run has no finished memory.
        EncoderError: If the requested device is absent.
        TrainingError: If no instance with labels is held out, or enriched label keys are to be tried on vectors of any
            length.
    """
    device = choose_device(settings.device)
    memory = open_memory(settings.run / "memory")
    if not memory.is_normalised and "label_key_alpha" in settings.model_fields_set:
        raise TrainingError(
            f"--label-key-alpha: expected a memory of unit vectors, whose means are label keys, found {memory.folder}, "
            "trained with --no-normalise; omit the flag"
        )
    rows = choose_queries(memory, settings.run, settings.queries, settings.seed, held_out)
    if len(rows) == 0:
        raise TrainingError(
            f"{settings.run}: expected instances with labels that the training held out, found none; {MORE_HELD_OUT}"
        )
    previous = InferenceSetting(
        memory.defaults["lambda"], memory.defaults["temperature"], int(memory.defaults["top_b"])
    )
    tried = settings.label_key_alpha if memory.is_normalised else []
    alphas = sorted({*tried, memory.defaults["label_key_alpha"]})
    given = {
        InferenceSetting(lambda_, temperature, top_b)
        for temperature in _temperatures(settings, memory)
        for top_b in settings.top_b
        for lambda_ in settings.lambda_
    }
    grid = sorted(given | {previous}, key=lambda setting: (setting.temperature, setting.top_b, setting.lambda_))
    top_b = max(setting.top_b for setting in grid)
    instances = instance_neighbours(memory, rows, top_b, device)
    filtered = memory.filtered_labels.to_csr(memory.plan.labels)[rows]
    relevance, depth = memory.relevance, int(settings.metric.partition("@")[2])
    truth = relevance[rows]
    weights = propensity_weights(memory.label_counts, memory.plan.instances, *settings.propensity)
    measured: dict[Trial, Float[np.ndarray, " query"]] = {}
    for alpha in with_progress(alphas, "alpha", "tune"):
        labels = label_neighbours(memory, rows, alpha, top_b, device)
        for setting, predictions in predict(instances, labels, relevance, grid, depth, filtered):
            scores = query_scores(settings.metric, predictions, truth, weights)
            measured[Trial(*setting, alpha, float(scores.mean()))] = scores
    # Among equal scores, prefer the values closest to the paper: label keys of texts, then larger b, then smaller tau.
    trials = sorted(measured, key=lambda trial: (-trial.score, trial.label_key_alpha, -trial.top_b, trial.temperature))
    before = next(t for t in trials if (*previous, memory.defaults["label_key_alpha"]) == _setting(t))
    best = next((t for t in trials if PairedGain.of(measured[before], measured[t]).exceeds(errors=1)), before)
    gain = PairedGain.of(measured[before], measured[best])
    tuning = Tuning(settings.metric, len(rows), before, best, gain, trials)
    _save(memory, tuning)
    return tuning


def _temperatures(settings: TuneSettings, memory: Memory) -> list[float]:
    """The values of tau to try. Without normalisation, the default values are multiples of the present tau."""
    if memory.is_normalised or "temperature" in settings.model_fields_set:
        return settings.temperature
    return [memory.defaults["temperature"] * tau / DEFAULTS["temperature"] for tau in settings.temperature]


def table(tuning: Tuning) -> list[str]:
    """Return a table of the trials `before` and `best` and of the best trial for each lambda and each alpha, and the
    decision.
    """
    shown: dict[str, Trial] = {"before": tuning.before, "best": tuning.best}
    for trial in tuning.trials:  # the trials are sorted, best first
        shown.setdefault(f"best at lambda {trial.lambda_:g}", trial)
        shown.setdefault(f"best at alpha {trial.label_key_alpha:g}", trial)
    names = sorted(shown, key=_row_order)
    head = f"{'':24}  {'lambda':>6}  {'tau':>6}  {'b':>5}  {'alpha':>5}  {tuning.metric:>7}"
    return (
        [head]
        + [
            f"{name:24}  {trial.lambda_:6g}  {trial.temperature:6g}  {trial.top_b:5}  {trial.label_key_alpha:5g}  "
            f"{trial.score:7.2f}"
            for name, trial in ((name, shown[name]) for name in names)
        ]
        + [_decision(tuning)]
    )


def _decision(tuning: Tuning) -> str:
    """What tuning has chosen, and its gain."""
    before, best = tuning.before.as_json(), tuning.best.as_json()
    names = {"lambda": "lambda", "temperature": "tau", "top_b": "b", "label_key_alpha": "alpha"}
    texts = f"{tuning.queries:,} held-out texts"
    if best == before:
        values = ", ".join(f"{short} {best[name]:g}" for name, short in names.items())
        return f"kept: {values}; no other setting gains more than its standard error on {texts}"
    values = ", ".join(
        f"{short} {best[name]:g}" + (f" (was {before[name]:g})" if best[name] != before[name] else "")
        for name, short in names.items()
    )
    return (
        f"chosen: {values}; {tuning.metric} gains {tuning.gain.mean:+.2f} (standard error {tuning.gain.error:.2f}) on "
        f"the {texts} that chose it"
    )


def _row_order(name: str) -> tuple[bool, str, float]:
    """Sort key of a row: `before`, `best`, then the rows "best at ..." by name and value."""
    if name in ("before", "best"):
        return False, name, 0.0
    prefix, _, value = name.rpartition(" ")
    return True, prefix, float(value)


def _setting(trial: Trial) -> tuple[float, float, int, float]:
    return trial.lambda_, trial.temperature, trial.top_b, trial.label_key_alpha


def is_tuned(memory: Memory) -> bool:
    """Whether `tuning.json` has the defaults of the memory. An interrupted tuning can leave `tuning.json` alone."""
    try:
        chosen = read_json(memory.folder / "tuning.json")["best"]
        return _defaults(chosen) == memory.defaults
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _save(memory: Memory, tuning: Tuning) -> None:
    """Write `tuning.json`, then the defaults.

    The previous defaults stay until then, so a repetition of an interrupted tuning has the same result.
    """
    write_json(memory.folder / "tuning.json", tuning.as_json())
    write_defaults(memory.folder, memory.plan, _defaults(tuning.best.as_json()))


def _defaults(trial: dict[str, float]) -> dict[str, float]:
    """The defaults of a memory that a trial has, given its JSON form."""
    return {name: trial[name] for name in DEFAULTS}
