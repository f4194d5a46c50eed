"""A memory that tunes itself: lambda, tau, b and the label keys' alpha, chosen on instances of its own.

RAE-XMC leaves a lambda chosen from data to future work. Each query is an instance of the memory, and one that training
held out, if it held any out. It is answered by all the rest: it does not vote for itself, and it is taken out of its
own labels' means. Its vector is its key, so nothing is encoded, and one search a query (and alpha) serves every lambda,
tau and b.

That undoes what an instance has done in the memory, not what it has done in training: there it pulled its labels
closer, and an adapter may have read it as a part of theirs. Where there is nothing better to ask, a warning says so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from tqdm import tqdm

from trainer.errors import TrainingError
from trainer.files import write_json
from trainer.inference import Answering, Neighbours, answer
from trainer.label_keys import mix
from trainer.memory import Memory, open_memory, write_defaults
from trainer.metrics import hits, ndcg_at, precision_at, propensity_weights, psp_at, recall_at
from trainer.randomness import Purpose, generator
from trainer.run_folder import RunFolder
from trainer.search import nearest
from trainer.settings import TuneSettings
from trainer.validation import hold_out


@dataclass(frozen=True)
class Trial:
    """One way to answer, and the metric it reached, in percent."""

    lambda_: float
    temperature: float
    top_b: int
    label_key_alpha: float
    score: float

    def as_json(self) -> dict[str, float]:
        return {name.removesuffix("_"): value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Tuning:
    """What was tried.

    Attributes:
        metric: What `score` is.
        queries: Instances that were asked.
        trained_on: Whether training learnt from them, so that scores are better than those of new queries.
        before: The defaults that the memory had.
        best: Those it has now.
        trials: Everything that was tried, best first.
    """

    metric: str
    queries: int
    trained_on: bool
    before: Trial
    best: Trial
    trials: list[Trial]

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "queries": self.queries,
            "trained_on": self.trained_on,
            "before": self.before.as_json(),
            "best": self.best.as_json(),
            "trials": [trial.as_json() for trial in self.trials],
        }


def tune(settings: TuneSettings) -> Tuning:
    """Try every combination of the settings' values, and make the best the memory's defaults.

    The memory's own defaults are tried too, so tuning never makes the metric worse on the instances asked.

    Raises:
        MemoryFolderError: If the run has no finished memory.
        TrainingError: If no instance has a label.
    """
    memory = open_memory(settings.run / "memory")
    rows, trained_on = _queries(settings, memory)
    if trained_on:
        print(  # noqa: T201
            f"{settings.run}: training held nothing out, so tuning asks what it learnt from: scores are too high, and "
            "the choice may not suit new queries; train with a --validation-fraction above 0",
            file=sys.stderr,
        )
    own = Answering(memory.defaults["lambda"], memory.defaults["temperature"], int(memory.defaults["top_b"]))
    alphas = sorted({*settings.label_key_alpha, memory.defaults["label_key_alpha"]})
    tried = {
        Answering(lambda_, temperature, top_b)
        for temperature in settings.temperature
        for top_b in settings.top_b
        for lambda_ in settings.lambda_
    }
    grid = sorted(tried | {own}, key=lambda setting: (setting.temperature, setting.top_b, setting.lambda_))
    most = max(setting.top_b for setting in grid)
    instances = _other_instances(memory, rows, most)
    measure = _Measure(settings, memory, rows)
    trials = []
    for alpha in tqdm(alphas, unit="alpha", desc="tune", dynamic_ncols=True, file=sys.stderr):
        labels = _labels_without(memory, rows, alpha, most)
        for setting, predictions in answer(instances, labels, measure.relevance, grid, measure.k):
            trials.append(Trial(*setting, alpha, measure(predictions)))
    # Of equals, the one nearest to the paper's own settings: text keys first, then more keys.
    trials.sort(key=lambda trial: (-trial.score, trial.label_key_alpha, -trial.top_b, trial.temperature))
    before = next(t for t in trials if (*own, memory.defaults["label_key_alpha"]) == _setting(t))
    tuning = Tuning(settings.metric, len(rows), trained_on, before, trials[0], trials)
    _write(memory, tuning)
    return tuning


def table(tuning: Tuning) -> list[str]:
    """The trials worth a look: before, best, and the best for each lambda and for each alpha."""
    shown: dict[str, Trial] = {"before": tuning.before, "best": tuning.best}
    for trial in tuning.trials:  # best first
        shown.setdefault(f"best at lambda {trial.lambda_:g}", trial)
        shown.setdefault(f"best at alpha {trial.label_key_alpha:g}", trial)
    names = sorted(shown, key=lambda name: (name.startswith("best at"), *_number(name)))
    head = f"{'':24}  {'lambda':>6}  {'tau':>6}  {'b':>5}  {'alpha':>5}  {tuning.metric:>7}"
    return [head] + [
        f"{name:24}  {trial.lambda_:6g}  {trial.temperature:6g}  {trial.top_b:5}  {trial.label_key_alpha:5g}  "
        f"{trial.score:7.2f}"
        for name, trial in ((name, shown[name]) for name in names)
    ]


def _number(name: str) -> tuple[str, float]:
    kind, _, value = name.rpartition(" ")
    return (kind, float(value)) if kind else ("" if name == "before" else "~", 0.0)


def _setting(trial: Trial) -> tuple[float, float, int, float]:
    return trial.lambda_, trial.temperature, trial.top_b, trial.label_key_alpha


def _queries(settings: TuneSettings, memory: Memory) -> tuple[Int[np.ndarray, " query"], bool]:
    """The instances to ask, those that training held out or any that have a label; and whether it learnt from them."""
    training = RunFolder(settings.run).training()
    rows = np.empty(0, dtype=np.int64)
    if training is not None:
        recipe = training["recipe"]
        rows = np.flatnonzero(hold_out(memory.label_sets, recipe["validation_fraction"], recipe["seed"]))
    trained_on = training is not None and len(rows) == 0
    if len(rows) == 0:
        rows = np.flatnonzero(np.diff(memory.value_indptr))
    if len(rows) == 0:
        raise TrainingError(f"{memory.folder}: expected instances with labels to ask, found none; nothing to tune")
    chosen = generator(settings.seed, Purpose.TUNING).permutation(rows)[: settings.queries]
    return np.sort(chosen), trained_on


def _other_instances(memory: Memory, rows: Int[np.ndarray, " query"], most: int) -> Neighbours:
    """Each query's nearest instances, itself left out."""
    keys = memory.instance_keys
    similarities, found = nearest(np.asarray(keys[rows]), keys, most + 1)
    itself = found == rows[:, None]
    itself[~itself.any(axis=1), -1] = True  # among equals it may not be found: the last goes
    shape = (len(rows), found.shape[1] - 1)
    return Neighbours(similarities[~itself].reshape(shape), found[~itself].reshape(shape))


def _labels_without(memory: Memory, rows: Int[np.ndarray, " query"], alpha: float, most: int) -> Neighbours:
    """Each query's nearest labels, the query taken out of its own labels' means."""
    keys = memory.label_keys(alpha)
    queries = np.asarray(memory.instance_keys[rows], dtype=np.float32)
    own = memory.label_sets.to_csr(len(keys))[rows]
    spare = int(np.diff(own.indptr).max()) if alpha else 0  # own labels come further down without the query's help
    similarities, found = nearest(queries, keys.filled(), most + spare)
    if alpha:
        query = np.repeat(np.arange(len(rows)), np.diff(own.indptr))
        asked, nth_asked = np.unique(own.indices, return_inverse=True)  # many queries have a label in common
        sums = keys.sums(asked)[nth_asked] - queries[query]
        sums[keys.counts[own.indices] == 1] = 0  # nothing is left, not even rounding
        texts = memory.label_keys(0.0)[own.indices]
        alone = np.einsum("pd,pd->p", queries[query], mix(texts, sums, alpha))
        similarities[hits(found, own)] = -np.inf
        # All own labels compete, found or not: without the query's help a label may even come closer.
        nth, shape = np.arange(len(query)) - own.indptr[query], (len(rows), spare)
        own_similarities, own_labels = np.full(shape, -np.inf, np.float32), np.zeros(shape, found.dtype)
        own_similarities[query, nth], own_labels[query, nth] = alone, own.indices
        similarities = np.concatenate([similarities, own_similarities], axis=1)
        found = np.concatenate([found, own_labels], axis=1)
        order = np.argsort(-similarities, axis=1, kind="stable")
        similarities, found = (np.take_along_axis(part, order, axis=1) for part in (similarities, found))
    most = min(most, len(keys))
    return Neighbours(similarities[:, :most], found[:, :most])


class _Measure:
    """The metric asked for, in percent."""

    def __init__(self, settings: TuneSettings, memory: Memory, rows: Int[np.ndarray, " query"]) -> None:
        self.name, _, depth = settings.metric.partition("@")
        self.k = int(depth)
        self.relevance = memory.label_sets.to_csr(memory.plan.labels)
        self._truth = self.relevance[rows]
        self._sizes = np.diff(self._truth.indptr)
        counts = np.bincount(memory.value_indices, minlength=memory.plan.labels)
        self._weights = propensity_weights(counts, memory.plan.instances, *settings.propensity)

    def __call__(self, predictions: Int[np.ndarray, "query k"]) -> float:
        hit = hits(predictions, self._truth)
        match self.name:
            case "P":
                scores = precision_at(hit, self.k)
            case "nDCG":
                scores = ndcg_at(hit, self._sizes, self.k)
            case "R":
                scores = recall_at(hit, self._sizes, self.k)
            case _:
                return 100 * psp_at(predictions, hit, self._truth, self._weights, self.k)
        return 100 * float(scores.mean())


def _write(memory: Memory, tuning: Tuning) -> None:
    """The table first, then the defaults: what a kill leaves is the old defaults."""
    write_json(memory.folder / "tuning.json", tuning.as_json())
    best = tuning.best
    write_defaults(
        memory.folder,
        memory.plan,
        {
            "lambda": best.lambda_,
            "temperature": best.temperature,
            "top_b": best.top_b,
            "label_key_alpha": best.label_key_alpha,
        },
    )
