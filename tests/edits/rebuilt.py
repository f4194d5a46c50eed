"""The same memory twice: as plain tables that entries change, and as a bundle that is written from these tables."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from recollect.core.answers import Answer
from recollect.core.bundle.bundle import Bundle, open_bundle
from recollect.core.bundle.files import MANIFEST, RANKER
from recollect.core.bundle.integrity import describe_files
from recollect.core.bundle.strings import write_table
from recollect.core.predictor import Predictor
from recollect.core.reranker.cooccurrence import Cooccurrence
from recollect.core.tables.entries import Entry, LoggedEntry, PutInstance, PutLabel, Remove
from recollect.core.words.index import write_lexical_index
from recollect.core.words.names import Names
from recollect.index_builder.faiss_index import KeysToIndex, build_index, write_index
from tests.fixtures import write_votes

KEPT = ("encoder.onnx", "tokenizer.json", "golden.json")


@dataclass
class Tables:
    """A memory as plain tables, in the order of a bundle."""

    instances: dict[str, tuple[str, list[str], np.ndarray]] = field(default_factory=dict)
    labels: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Bundle, predictor: Predictor) -> Tables:
        searcher = predictor.bundle_memory.searcher
        instance_keys = searcher.instances.index.reconstruct_n(0, searcher.instances.keys)  # type: ignore[attr-defined]
        label_keys = searcher.labels.index.reconstruct_n(0, searcher.labels.keys)  # type: ignore[attr-defined]
        labels, tables = bundle.labels, cls()
        for row in range(len(labels)):
            tables.labels[labels.uids[row]] = (labels.texts[row], label_keys[row])
        for row in range(len(bundle.instances.uids)):
            own = bundle.instances.values.gather(np.array([row]))[1].tolist()
            tables.instances[bundle.instances.uids[row]] = (
                bundle.instances.texts[row],
                [labels.uids[position] for position in own],
                instance_keys[row],
            )
        return tables

    def apply(self, entry: Entry) -> None:
        match entry:
            case PutInstance(uid, text, labels, vector):
                self.instances.pop(uid, None)
                self.instances[uid] = (text, [*labels], vector)
            case PutLabel(uid, text, vector):
                self.labels[uid] = (text, vector)
            case Remove("instance", uid):
                self.instances.pop(uid, None)
            case Remove("label", uid):
                self.labels.pop(uid, None)
                for instance, (text, own, vector) in [*self.instances.items()]:
                    if own == [uid]:
                        del self.instances[instance]
                    elif uid in own:
                        self.instances[instance] = (text, [each for each in own if each != uid], vector)

    def open(self, base: Path, folder: Path, words: bool = False, ranker: str = "") -> Predictor:
        """Write these tables as a bundle with the encoder of another bundle and exact search, and open it."""
        folder.mkdir(parents=True)
        manifest = json.loads((base / MANIFEST).read_bytes())
        for name in KEPT:
            os.link(base / name, folder / name)
        position = {uid: number for number, uid in enumerate(self.labels)}
        votes = [sorted(position[uid] for uid in own) for _, own, _ in self.instances.values()]
        write_votes(folder, votes, len(position))
        for part, content in (("instance", self.instances), ("label", self.labels)):
            index, info = build_index(KeysToIndex(np.array([each[-1] for each in content.values()])), "flat")
            write_index(index, folder / f"{part}_keys.faiss")
            manifest["index"][f"{part}s"] = json.loads(info.model_dump_json())
            uids = write_table(folder, f"{part}_uids", content)
            write_table(folder, f"{part}_texts", (each[0] for each in content.values()))
        np.save(folder / "label_order.npy", uids.sorted_rows())
        texts = [[each[0] for each in content.values()] for content in (self.instances, self.labels)]
        if ranker:
            (folder / RANKER).write_text(ranker)
            Names.of(texts[1]).write(folder)
            Cooccurrence(np.zeros(len(position) + 1, dtype=np.int64)).write(folder)
        if words:
            write_lexical_index(folder, *texts)
        counts = {"instances": len(self.instances), "labels": len(self.labels), "pairs": sum(map(len, votes))}
        files = {name: file.model_dump() for name, file in describe_files(folder).items()}
        (folder / MANIFEST).write_text(json.dumps(manifest | {"counts": counts, "files": files}), encoding="utf-8")
        return Predictor.open(open_bundle(folder), threads=1)


def logged(entries: Sequence[Entry], after: int = 0) -> list[LoggedEntry]:
    return [LoggedEntry(after + nth, 1.7e9 + nth, entry) for nth, entry in enumerate(entries, start=1)]


def random_entries(rng: np.random.Generator, tables: Tables, texts: Sequence[str], vectors: np.ndarray) -> list[Entry]:
    """Random inserts, replacements and removals of instances and labels, applied to the tables one after the other.

    Each text is for one entry. No two keys are equal, because the order of equal keys in a search is arbitrary.
    """
    entries: list[Entry] = []
    for nth in range(len(texts)):
        choice = rng.random()
        labels, instances = [*tables.labels], [*tables.instances]
        label, instance = str(rng.choice(labels)), str(rng.choice(instances))
        own = rng.choice(labels, size=int(rng.integers(1, 4)), replace=False).tolist()
        entry: Entry
        if choice < 0.35:
            entry = PutInstance(f"new {nth}", texts[nth], own, vectors[nth])
        elif choice < 0.55:
            entry = PutInstance(instance, texts[nth], own, vectors[nth])
        elif choice < 0.75:
            entry = Remove("instance", instance)
        elif choice < 0.83:
            entry = PutLabel(f"new label {nth}", texts[nth], vectors[nth])
        elif choice < 0.92:
            entry = PutLabel(label, texts[nth], vectors[nth])
        else:
            entry = Remove("label", label)
        tables.apply(entry)
        entries.append(entry)
    return entries


def largest_difference(live: Sequence[Answer], rebuilt: Sequence[Answer]) -> float:
    """The largest difference of scores, probabilities, shares and terms of logits; labels must be the same."""
    largest = 0.0
    for left, right in zip(live, rebuilt, strict=True):
        ours, theirs = ({label.uid: label for label in answer.labels} for answer in (left, right))
        for uid in ours.keys() ^ theirs.keys():  # a label can be missing only if it is at the end of the list
            last = min(answer.labels[-1].score for answer in (left, right))
            largest = max(largest, (ours | theirs)[uid].score - last)
        for uid in ours.keys() & theirs.keys():
            one, other = ours[uid], theirs[uid]
            assert one.text == other.text
            largest = max(largest, abs(one.score - other.score))
            if one.probability is not None and other.probability is not None:
                largest = max(largest, abs(one.probability - other.probability))
            largest = max(largest, _differences(_terms(one.because), _terms(other.because)))
            ranked = ({term.feature: term.log_odds for term in label.ranked_by or []} for label in (one, other))
            largest = max(largest, _differences(*ranked))
    return largest


def _terms(because: list | None) -> dict:
    return {(term.kind, term.uid, term.text, term.by): term.share for term in because or []}


def _differences(one: dict, other: dict) -> float:
    return max((abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys()), default=0.0)
