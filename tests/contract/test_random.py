"""Random checks: answers against a plain reference, two writers, hostile requests, and killed bulk tasks.

Each round prints its seed: `RECOLLECT_RANDOM_SEED=SEED pytest tests/contract/test_random.py` repeats the round. Without
this variable, the suite has the same seeds each time. `make random` runs each check with new seeds for a quarter of an
hour.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import recollect
from tests import forked
from tests.contract.make_store import TOPICS
from tests.contract.reference import SIMILARITY_ERROR, Correction, Instance, Reference
from tests.contract.servers import serving
from tests.extras import is_present
from tests.processes import copy_store, run, started, write_lines

REPOSITORY = Path(__file__).parents[2]
WORDS = [word for words in TOPICS.values() for word in words.split()][:24]


def seeds(rounds: int) -> Iterator[int]:
    """The seeds of some rounds, or of all rounds until RECOLLECT_RANDOM_SECONDS have passed."""
    first, seconds = (int(os.environ.get(f"RECOLLECT_RANDOM_{name}", 0)) for name in ("SEED", "SECONDS"))
    end = time.monotonic() + seconds
    for seed in itertools.count(first):
        if seed >= first + rounds and time.monotonic() > end:
            return
        sys.stdout.write(f"RECOLLECT_RANDOM_SEED={seed}\n")
        yield seed


# ---- Answers ----


def random_text(rng: np.random.Generator) -> str:
    """A text of one to three words, so that equal texts, and equal keys, are frequent."""
    return " ".join(rng.choice(WORDS, size=int(rng.integers(1, 4))))


def change(rng: np.random.Generator, model: Any, reference: Reference, number: int) -> None:
    """Make one random change of a model and of its reference."""
    text, label, instance = random_text(rng), pick(rng, reference.labels), pick(rng, reference.instances)
    vector = model.predictor.encode([text], [])[0]
    match rng.choice(["instance", "label", "remove instance", "remove label", "learn", "forget"], p=[0.4, *[0.12] * 5]):
        case "instance":
            own = rng.choice([*reference.labels], size=int(rng.integers(1, 4)), replace=False).tolist()
            uid = str(rng.choice([instance, f"instance {number}"]))
            weight = float(rng.choice([1, 1, 3, 0.25, 1e9, 1e-9]))
            model.add(instances=[{"uid": uid, "text": text, "labels": own, "weight": weight}])
            reference.instances[uid] = Instance(own, vector, weight)
        case "label":
            uid = str(rng.choice([label, f"label {rng.integers(4)}"]))  # also one that was removed
            model.add(labels=[{"uid": uid, "text": text}])
            reference.labels[uid] = model.predictor.encode([], [text])[0]
        case "remove instance":
            model.remove(instances=[instance])
            del reference.instances[instance]
        case "remove label" if len(reference.labels) > 8:
            model.remove(labels=[label])
            reference.remove_label(label)
        case "learn":
            relevant = bool(rng.integers(2))
            uid = model.learn(text, label, relevant=relevant)
            if relevant:
                reference.instances[uid] = Instance([label], vector, 1.0)
            else:
                reference.corrections[uid] = Correction(label, vector)
        case "forget" if reference.corrections:
            uid = pick(rng, reference.corrections)
            model.forget(uid)
            del reference.corrections[uid]


def pick(rng: np.random.Generator, uids: Any) -> str:
    return str(rng.choice([*uids]))


def random_options(rng: np.random.Generator, reference: Reference) -> dict[str, Any]:
    some = rng.choice([*reference.labels, "unknown"], size=int(rng.integers(1, 6)), replace=False).tolist()
    return {
        "lambda_": float(rng.choice([0, 1, 0.5, 1e-9, 1 - 1e-9, rng.random()])),
        "temperature": float(rng.choice([1e-4, 100, 0.04, 10 ** rng.uniform(-4, 2)])),
        "top_b": int(rng.choice([1, 2, 10_000, rng.integers(1, 100)])),
        "top_k": int(rng.choice([1, 1_000, rng.integers(1, 30)])),
        "allow": some if rng.random() < 0.25 else None,
        "deny": some if rng.random() < 0.25 else [],
    }


def test_answers_and_explanations_equal_the_formulas_after_random_changes(store: Path) -> None:
    fixed = {"word_weight": 0.0, "order": "score", "explain": True}
    for seed in seeds(rounds=4):
        rng, model = np.random.default_rng(seed), recollect.open(store)
        reference = Reference.of(model)
        for number in range(60):
            change(rng, model, reference, number)
            queries = [random_text(rng), *[random_text(rng) for _ in reference.corrections][:1]]
            for query in queries:
                options = random_options(rng, reference)
                (vector,) = model.predictor.encode([query], [])
                scores, terms = reference.answer(vector.astype(np.float64), options)
                answer = model.predict(query, **options, **fixed)
                require_equal(answer, scores, terms, options)
        assert len(reference.instances) == model.predictor.memory.snapshot.instances.present


def require_equal(
    answer: list[Any], scores: dict[str, float], terms: dict[str, dict[Any, float]], options: dict[str, Any]
) -> None:
    error = min(1.0, 4 * SIMILARITY_ERROR / options["temperature"]) + 1e-9
    found = {label.uid: label.score for label in answer}
    assert [*found.values()] == sorted(found.values(), reverse=True), options
    assert len(found) == len(answer) == min(options["top_k"], len(scores)), options
    for label in answer:
        assert abs(label.score - scores[label.uid]) <= error, (options, label, scores[label.uid])
        shares = {
            (term.kind, term.uid) if term.kind != "correction" else term.kind: term.share for term in label.because
        }
        assert shares.keys() == terms[label.uid].keys(), (options, label)
        assert all(abs(share - terms[label.uid][key]) <= error for key, share in shares.items()), (options, label)
        assert abs(sum(shares.values()) - label.score) <= 1e-9, (options, label)
    least = min(found.values(), default=0.0)
    assert all(scores[uid] <= least + error for uid in scores.keys() - found.keys()), options


# ---- Two writers ----

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
# Program that makes random changes of a store, waits for a line, and prints the answers of its memory.
WRITES = """
import json, sys
import numpy as np
import recollect
from tests.contract.test_random import random_text
store, seed, name, changes = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rng, model, feedback = np.random.default_rng([seed, ord(name)]), recollect.open(store, live="write"), []
labels = ["shared 0", "shared 1", "bread", "wine"]
for number in range(changes):
    label, text = str(rng.choice(labels)), random_text(rng)
    try:
        match int(rng.integers(6)):
            case 0: model.add(labels=[{"uid": label, "text": text}])
            case 1: model.add([{"uid": f"{name} {number % 9}", "text": text, "labels": [label]}], create_labels=True)
            case 2: model.add([{"uid": f"both {number % 3}", "text": text, "labels": [label], "weight": 2.5}])
            case 3: feedback.append(model.learn(text, label, relevant=number % 2 == 0))
            case 4: model.remove(labels=[label]) if number % 3 == 0 else model.remove([f"{name} {number % 9}"])
            case 5: model.forget(feedback.pop()) if feedback else None
    except recollect.ERRORS as error:  # the other process has removed the label or the instance
        assert "expected" in str(error), error
print("written", flush=True)
sys.stdin.readline()
model.predictor.log.catch_up()
options = {"top_k": 1_000, "top_b": 10_000, "lambda_": 0.5, "explain": True}
queries = [random_text(np.random.default_rng(seed)) for seed in range(9)]
print(json.dumps([model.sequence, repr(model.predict(queries, **options))]))
"""


def test_two_processes_that_write_at_random_have_the_memory_of_a_process_that_reads_the_log(
    golden_store: Path, tmp_path: Path
) -> None:
    for seed in seeds(rounds=1):
        store = copy_store(golden_store, tmp_path / str(seed))
        commands = ([sys.executable, "-c", WRITES, str(store), str(seed), name] for name in "abc")
        with contextlib.ExitStack() as stack:

            def start(command: list[str], changes: int) -> Any:
                return stack.enter_context(forked.Popen([*command, str(changes)], cwd=REPOSITORY, **PIPES))

            first, second, reader = commands
            writers = [start(first, 60), start(second, 60)]
            assert [each.stdout.readline() for each in writers] == ["written\n"] * 2
            processes = [*writers, start(reader, 0)]
            found = [process.communicate("\n")[0].splitlines()[-1] for process in processes]
        assert found[0] == found[1] == found[2]
        assert json.loads(found[0])[0] > 20


# ---- Hostile requests ----

VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 1e308, 10**30, 0.5, "", " ", "bread", "\0", "\U0001f980", "x" * 30_000)
VALUES += ([], {}, [[]], [None])
BODIES: dict[str, dict[str, Any]] = {
    "/predict": {"query": "flour", "lambda": 0.5, "temperature": 0.1, "top_b": 9, "top_k": 9}
    | {"allow": ["bread"], "deny": []},
    "/predict/batch": {"queries": ["flour", "goat"], "explain": True, "order": "score", "timeout_ms": 60_000},
    "/memory/instances": {
        "instances": [{"uid": "i", "text": "t", "labels": ["bread"], "weight": 2}],
        "create_labels": True,
    },
    "/memory/labels": {"labels": [{"uid": "l", "text": "t"}]},
    "/feedback": {"query": "flour", "label": "wine", "relevant": False},
    "/v1/projects/recollect/learn": {"text": "t", "subjects": [{"uri": "bread"}]},
    "/v1/projects/recollect/suggest-batch": {"documents": [{"text": "t", "document_id": "d"}]},
}
PATHS = (
    *BODIES,
    *("/memory", "/labels", "/labels/bread", "/version", "/versions", "/versions/x/activate", "/versions/rollback"),
    *("/memory/instances/i", "/memory/labels/l", "/feedback/feedback-1", "/health/ready", "/openapi.json", "/nothing"),
)


def mutate(rng: np.random.Generator, value: Any) -> Any:
    """A JSON value with one random change: a field or an entry is replaced, removed, doubled, or changed inside."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return VALUES[rng.integers(len(VALUES))]
    key = [*value][rng.integers(len(value))] if isinstance(value, dict) else int(rng.integers(len(value)))
    changed = value.copy()
    match int(rng.integers(5)):
        case 0:
            del changed[key]
        case 1 if isinstance(changed, dict):
            changed[key + "_"] = changed[key]
        case 1 if isinstance(changed, list):
            changed *= int(rng.integers(2, 200))
        case _:
            changed[key] = mutate(rng, value[key])
    return changed


def random_request(rng: np.random.Generator) -> dict[str, Any]:
    path = PATHS[rng.integers(len(PATHS))] if rng.random() < 0.2 else [*BODIES][rng.integers(len(BODIES))]
    body = BODIES.get(path, {})
    content = json.dumps([body] if path.endswith("learn") else body).encode()
    for _ in range(int(rng.integers(4))):
        content = json.dumps(mutate(rng, json.loads(content))).encode()
    if rng.random() < 0.2:  # no JSON
        place = int(rng.integers(len(content) + 1))
        content = content[:place] + rng.bytes(int(rng.integers(9))) + content[place + int(rng.integers(9)) :]
    if rng.random() < 0.1:
        path += str(rng.choice(["/", "//", "/%00", "/..", "?x=%ff&limit=-1", "/" + "a" * 3_000, "%2F%0A"]))
    method = str(rng.choice(["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])) if rng.random() < 0.2 else "POST"
    headers = {"Idempotency-Key": str(rng.integers(5))} if rng.random() < 0.1 else {}
    return {"method": method, "url": path, "content": content, "headers": headers}


def test_random_requests_get_answers_or_problems_and_the_service_answers_afterwards(store: Path) -> None:
    with serving(store, *(["--annif"] if is_present("annif") else [])) as server:
        for seed in seeds(rounds=2):
            rng = np.random.default_rng(seed)
            for _ in range(150):
                request = random_request(rng)
                response = server.client.request(**request)
                assert response.status_code < 500, (request, response.text)
                if response.status_code >= 400 and request["method"] != "HEAD":
                    assert response.headers["content-type"] == "application/problem+json", (request, response.text)
                    assert response.json()["detail"], request
            assert server.ask("flour and yeast").status_code == 200
        assert "Traceback" not in server.log()
        sequence = server.client.get("/memory").json()["sequence"]
    assert recollect.open(store).sequence == sequence


# ---- Killed bulk tasks ----


def test_bulk_task_that_is_killed_anywhere_writes_the_bytes_of_one_run(store: Path, tmp_path: Path) -> None:
    for seed in seeds(rounds=1):
        rng = np.random.default_rng(seed)
        rows = [{"id": number, "text": random_text(rng)} for number in range(3_000)]
        queries = write_lines(tmp_path / f"{seed}.jsonl", rows)
        ending = str(rng.choice(["jsonl", "csv", *(["parquet"] if is_present("parquet") else [])]))
        whole, killed = (tmp_path / f"{name}-{seed}.{ending}" for name in ("whole", "killed"))

        options = ("--input", queries, "--store", store, "--columns", "id", "--workers", int(rng.integers(1, 3)))

        def task(output: Path, options: tuple[object, ...] = options) -> tuple[object, ...]:
            return ("predict", "--output", output, *options)

        began = time.monotonic()
        run(*task(whole))
        seconds = time.monotonic() - began
        for _ in range(2):
            with started(*task(killed), log=tmp_path / "log") as process:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(0.2, 1.0) * seconds)
                process.send_signal(signal.SIGKILL)
            if killed.exists():
                break
        if not killed.exists():
            run(*task(killed))
        assert killed.read_bytes() == whole.read_bytes(), ending
