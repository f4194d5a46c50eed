"""Each verb: its arguments, its exit status, the output that a script reads, and the message for the usual mistakes.

`data/mistakes.json` lists the mistakes: the arguments, and the parts of the message. The exit status of each is 2.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import forked
from tests.contract.conftest import Work
from tests.contract.make_store import TOPICS
from tests.contract.matching import differences, filled
from tests.contract.servers import serving
from tests.extras import is_present
from tests.processes import PATIENCE_SECONDS, environment, run, run_json, write_lines

MISTAKES = json.loads((Path(__file__).parent / "data" / "mistakes.json").read_text(encoding="utf-8"))
QUERY = "flour and yeast"
VERBS_OF_TRAINING = "demo sample presets train tune rank build push evaluate compare"
VERBS_OF_A_STORE = "predict serve memory extend compact versions activate rollback log verify export copy prune"
VERBS = f"{VERBS_OF_TRAINING} {VERBS_OF_A_STORE}".split()


@pytest.fixture(scope="module")
def garden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two labels."""
    folder = tmp_path_factory.mktemp("garden") / "garden"
    folder.mkdir()
    write_lines(folder / "labels.jsonl", [{"uid": "chair", "text": "chair"}, {"uid": "rake", "text": "rake"}])
    write_lines(folder / "train.jsonl", [{"uid": "q1", "text": "seat for the lawn", "labels": ["chair"]}])
    return folder


# A process that makes all mistakes: it loads the libraries of the verbs only once.
MAKE_ALL = """
import contextlib, io, json, sys, recollect
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as message:
        status = recollect.main(arguments)
    print(json.dumps([status, out.getvalue(), message.getvalue()]))
"""


def test_mistakes_get_status_2_and_a_message_of_one_line_that_names_the_next_step(
    golden_store: Path, golden_version: str, garden: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("alice secret\n")
    shutil.copytree(garden, tmp_path / "GARDEN")
    present = [each for each in MISTAKES if each["run"][:1] != ["push"] or is_present("hub")]
    mistakes = filled(present, {"STORE": str(golden_store), "VERSION": golden_version, "KEYS": "keys"})
    done = forked.run(
        [sys.executable, "-c", MAKE_ALL],
        input=json.dumps([each["run"] for each in mistakes]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    wrong = []
    for mistake, line in zip(mistakes, done.stdout.splitlines(), strict=True):
        status, out, message = json.loads(line)
        missing = [part for part in mistake["says"] if part not in message]
        verb = mistake["run"][1:] and mistake["run"][0]
        is_line = message.count("\n") == 1 and message.startswith(f"recollect {verb}: ")
        if missing or (status, out) != (2, "") or (verb and not is_line):
            wrong.append(f"{mistake['run']}: {status}, {message!r}, without {missing}")
    assert not wrong, "\n".join(wrong)
    assert not (tmp_path / "run").exists()


def test_help_lists_all_verbs_and_explains_the_flags_of_each() -> None:
    overview = run("--help").stdout
    assert all(f"\n  {verb} " in overview for verb in VERBS)
    assert run("--version").stdout.startswith("recollect ")
    with ThreadPoolExecutor(2) as threads:
        for verb, done in zip(VERBS, threads.map(lambda verb: run(verb, "--help"), VERBS), strict=True):
            assert done.stdout.startswith(f"usage: recollect {verb} "), verb
            assert "--help" in done.stdout
            assert not re.search(r"--[\w-]+ (\w+\[|\{Path|int|float|str|Path|[A-Z]+[a-z])", done.stdout), (
                "a Python type"
            )


# ---- Ask ----


def test_predict_prints_scores_and_uids_and_json_with_the_fields_of_http(
    golden_store: Path, golden_version: str
) -> None:
    (line,) = run("predict", QUERY, "--store", golden_store, "--top-k", 1).stdout.splitlines()
    assert "bread  bread and flour" in line
    explained = ("--top-k", 1, "--explain", "--order", "score")
    (line, *terms) = run("predict", QUERY, "--store", golden_store, *explained).stdout.splitlines()
    assert any("label" in term and "bread" in term for term in terms)
    answer = run_json("predict", QUERY, "--store", golden_store, "--top-k", 1, "--allow", "law,bread", "--deny", "law")
    assert not differences(answer, {"version": golden_version, "sequence": 0, "labels": [{"uid": "bread"}]})


def test_predict_reads_flags_from_the_environment(golden_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import processes

    own = processes.environment(RECOLLECT_STORE=str(golden_store), RECOLLECT_TOP_K="3")
    monkeypatch.setattr(processes, "environment", lambda: own)
    assert len(run_json("predict", QUERY)["labels"]) == 3
    assert len(run_json("predict", QUERY, "--top-k", 2)["labels"]) == 2


def test_predict_reads_and_writes_files_of_each_format(golden_store: Path, tmp_path: Path) -> None:
    rows = [{"id": "1", "text": QUERY}, {"id": "2", "text": "comet and planet"}]
    write_lines(tmp_path / "queries.jsonl", rows)
    with gzip.open(tmp_path / "queries.csv.gz", "wt", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["id", "text"])
        table.writeheader()
        table.writerows(rows)
    (tmp_path / "queries.txt").write_text(f"{QUERY}\ncomet and planet\n")
    options = ("--store", golden_store, "--top-k", 1, "--workers", 1)
    typed = "b.parquet" if is_present("parquet") else "b.csv"
    for name, output in (("queries.jsonl", "a.csv"), ("queries.csv.gz", typed), ("queries.txt", "c.jsonl.gz")):
        columns = ("--columns", "text") if name == "queries.jsonl" else ()
        run("predict", "--input", tmp_path / name, "--output", tmp_path / output, *options, *columns)
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        answers = [json.loads(row["labels"])[0]["uid"] for row in csv.DictReader(file)]
    run("predict", "--input", tmp_path / typed, "--output", tmp_path / "d.jsonl", *options, "--columns", "id")
    lines = (tmp_path / "d.jsonl").read_text().splitlines()
    with gzip.open(tmp_path / "c.jsonl.gz", "rt", encoding="utf-8") as file:
        of_lines = [json.loads(line)["labels"][0]["uid"] for line in file]
    assert answers == of_lines == [json.loads(line)["labels"][0]["uid"] for line in lines] == ["bread", "astronomy"]
    assert [json.loads(line)["id"] for line in lines] == ["1", "2"]


def test_predict_answers_lines_of_standard_input_and_marks_bad_rows(golden_store: Path) -> None:
    options = ("--store", golden_store, "--top-k", 1, "--workers", 1)
    lines = run("predict", "-", *options, stdin=f"{QUERY}\ncomet and planet\n").stdout.splitlines()
    assert [json.loads(line)["labels"][0]["uid"] for line in lines] == ["bread", "astronomy"]
    bad = json.dumps({"text": QUERY}) + "\n" + json.dumps({"text": ""}) + "\n"
    run("predict", "-", *options, "--input-format", "jsonl", stdin=bad, status=2)
    marked = run("predict", "-", *options, "--input-format", "jsonl", "--bad-rows", "mark", stdin=bad)
    good, wrong = map(json.loads, marked.stdout.splitlines())
    assert good["labels"]
    assert (wrong["labels"], bool(wrong["error"])) == ([], True)


# ---- Versions ----


def test_versions_activate_rollback_and_log(two_versions: Path, work: Work) -> None:
    store = ("--store", two_versions)
    listed = run_json("versions", *store)
    assert listed["current"] == work.first
    facts = {"created": "<text>", "labels": 24, "dim": 16, "index": "flat", "precision": "fp32", "size": "<number>"}
    expected = [{"version": work.first, "current": True}, {"version": work.second, "current": False}]
    listed["versions"].sort(key=lambda row: not row["current"])
    assert not differences(listed["versions"], [facts | each for each in expected])
    assert any(line.startswith(f"* {work.first} ") for line in run("versions", *store).stdout.splitlines())

    assert run("activate", work.second, *store, "--by", "ann", "--why", "a test").stdout.split() == [work.second]
    assert run_json("predict", QUERY, *store)["version"] == work.second
    assert run_json("predict", QUERY, *store, "--version", work.first)["version"] == work.first
    assert run("rollback", *store).stdout.split() == [work.first]
    assert run_json("versions", *store)["current"] == work.first
    log = run_json("log", *store)["log"]
    changes = [(entry["action"], entry["to"]) for entry in log]
    assert changes == [("activate", work.first), ("activate", work.second), ("rollback", work.first)]
    assert (log[1]["by"], log[1]["why"], log[1]["from"]) == ("ann", "a test", work.first)
    assert [entry["generation"] for entry in log] == [1, 2, 3]
    assert len(run("log", *store).stdout.splitlines()) == 3


def test_verify_copy_and_prune(two_versions: Path, work: Work, tmp_path: Path) -> None:
    store = ("--store", two_versions)
    assert run("verify", work.second, *store).stdout.startswith(f"{work.second}: ")
    for _ in range(2):  # a repeated copy changes nothing
        assert run("copy", "current", *store, "--to", tmp_path / "other").stdout.split() == [work.first]
    other = ("--store", tmp_path / "other")
    assert run_json("versions", *other)["current"] is None
    assert work.first in run("serve", *other, "--port", 0, status=2).stderr
    assert run("activate", work.first, *other).stdout.split() == [work.first]
    assert run_json("predict", QUERY, *other)["labels"][0]["uid"] == "bread"

    built = run("build", work.run, *store, "--index", "flat", "--lexical", "off").stdout.splitlines()[-1]
    for dry in (("--dry-run",), ()):
        (line,) = run("prune", *store, "--keep", 1, *dry).stdout.splitlines()
        assert line.split()[0] == work.second
    assert {row["version"] for row in run_json("versions", *store)["versions"]} == {work.first, built}


def test_wait_reports_the_replicas_that_serve_a_version(two_versions: Path, work: Work) -> None:
    with serving(two_versions) as server:
        done = run("activate", work.second, "--store", two_versions, "--wait", "--replicas", 1)
        assert f"serves {work.second}" in done.stderr
        assert server.version() == work.second
        done = run("rollback", "--store", two_versions, "--wait", "--replicas", 2, "--wait-seconds", 1, status=1)
        assert work.first in done.stderr


# ---- Live memory ----


def test_extend_memory_export_and_compact(store: Path, tmp_path: Path) -> None:
    label, instance = {"uid": "pasta", "text": "noodles"}, {"uid": "p1", "text": "cup of goal", "labels": ["pasta"]}
    done = run("extend", store, "--add", write_lines(tmp_path / "add.jsonl", [instance, label]))
    assert done.stdout.split("sequence: ")[1].strip() == "2"
    memory = run_json("memory", store)
    facts = {"version": "<text>", "sequence": 2, "entries": 2, "instances": 1, "labels": 1, "removed_labels": 0}
    assert not differences(memory, facts | {"size_bytes": "<number>", "oldest": "<text>"})
    assert "sequence 2" in run("memory", store).stdout
    assert run_json("predict", "noodles cup of goal", "--store", store, "--allow", "pasta")["labels"]

    run("export", store, "--out", tmp_path / "exported")
    rows = [json.loads(line) for line in (tmp_path / "exported" / "train.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 289
    assert instance in [{name: row[name] for name in instance} for row in rows]

    version = run("compact", store, "--index", "flat", "--activate").stdout.splitlines()[-1]
    assert run_json("versions", "--store", store)["current"] == version
    compacted = run_json("memory", store)
    assert (compacted["version"], compacted["entries"]) == (version, 0)
    gone = write_lines(tmp_path / "remove.jsonl", [{"label": "pasta"}, {"label": "unknown"}])
    assert "unknown" in run("extend", store, "--remove", gone).stderr
    assert not run_json("predict", "noodles", "--store", store, "--allow", "pasta")["labels"]


# ---- Train, build, evaluate ----


def test_train_tune_rank_build_and_evaluate(work: Work, tmp_path: Path) -> None:
    run_folder, store = shutil.copytree(work.run, tmp_path / "run"), tmp_path / "store"
    lengths = ("--max-length", 24, "--label-max-length", 24)
    static = ("--encoder", "static", "--static-from", work.encoder, "--epochs", 1, "--validation-fraction", 0.5)
    again = run("train", work.dataset, "--out", work.run, *static, *lengths)
    assert "already done" in again.stderr
    run("train", work.dataset, "--out", run_folder, "--epochs", 0, *lengths, "--encoder", work.encoder, status=2)

    tuned = run_json("tune", run_folder, "--lambda", "0,0.5", "--temperature", "0.05", "--top-b", "50")
    assert {"lambda", "temperature", "top_b", "score"} <= set(tuned["best"])
    assert tuned["best"]["score"] >= tuned["before"]["score"]
    ranked = run_json("rank", run_folder)
    assert {"kept", "metric", "gains"} <= set(ranked)
    flags = ("--index", "hnsw", "--precision", "int8", "--force", "--activate")
    built = run("build", run_folder, "--store", store, *flags)
    version = built.stdout.splitlines()[-1]
    assert run_json("versions", "--store", store)["current"] == version

    report = run_json("evaluate", work.dataset, "--store", store, "--lambda", "0,1")
    assert (report["version"], report["queries"]) == (version, 2 * len(TOPICS))
    assert [row["lambda"] for row in report["rows"]][0] == 0
    names = {"temperature", "top_b", "order", "P@1", "P@5", "nDCG@5", "PSP@5", "R@100", "intervals"}
    assert all(names <= set(row) for row in report["rows"])
    assert "P@1" in run("evaluate", work.dataset, "--store", store).stdout


def test_presets_name_their_settings() -> None:
    presets = run_json("presets")
    assert all({"name", "method", "dataset", "flags"} <= set(each) for each in presets)
    name = presets[0]["name"]
    assert run("presets").stdout.splitlines()[1].split()[0] == name
    assert name in run("presets", name).stdout
