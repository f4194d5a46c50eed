"""Checks of the parents that the labels of a dataset name. A wrong parent loses no label."""

from __future__ import annotations

from collections.abc import Iterator

from recollect.core.bundle.label_fields import from_json
from recollect.trainer.data.split import Entries


def describe_parents(labels: Entries) -> Iterator[str]:
    """Yield a message if labels name parents that are no labels, and one if labels are below themselves."""
    if labels.fields is None:
        return
    uids = labels.uids.to_pylist()
    parents = {
        uid: from_json(text).get("parents", []) for uid, text in zip(uids, labels.fields.to_pylist(), strict=True)
    }
    unknown = [(uid, parent) for uid, named in parents.items() for parent in named if parent not in parents]
    if unknown:
        uid, parent = unknown[0]
        yield f"{len(unknown):,} parents are no labels (the first: {parent!r} of {uid!r}); a filter ignores them"
    if cycle := _cycle(parents):
        found = " < ".join(map(repr, cycle[:8]))
        yield f"expected parents without a cycle, found {found}; each of these labels is below the others"


def _cycle(parents: dict[str, list[str]]) -> list[str]:
    """The labels of a cycle of parents, from one of them back to itself; empty if there is none."""
    done = set[str]()
    for start in parents:
        path, waiting = dict[str, None](), [iter([start])]
        while waiting:
            uid = next((each for each in waiting[-1] if each not in done), None)
            if uid is None:
                waiting.pop()
                if path:
                    done.add(path.popitem()[0])
            elif uid in path:
                way = [*path]
                return [*way[way.index(uid) :], uid]
            else:
                path[uid] = None
                waiting.append(iter(parents.get(uid, [])))
    return []
