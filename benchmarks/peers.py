"""`python -m benchmarks.peers DATASET --folder FOLDER --trees ENV --annif ENV`: Recollect and its peers in one table.

Every peer answers the first test texts of the dataset. Peers and clients share the machine's cores:

    service      what a user would write in 40 lines: `benchmarks/peer_service.py`
    pecos        PECOS XR-Linear in process
    bonsai       Omikuji's Bonsai in process
    annif        Annif's REST API with Omikuji's Bonsai
    ensemble     Annif's REST API with an ensemble of Bonsai and MLLM
    static       Recollect with a static encoder
    minilm       Recollect with MiniLM in int8 and an adapter

PECOS and Omikuji run in one environment, and Annif in another one:

    python -m venv TREES && TREES/bin/pip install scikit-learn omikuji==0.5.2 libpecos==1.2.8
    python -m venv ANNIF && ANNIF/bin/pip install "annif[omikuji]"

Annif needs NLTK's punkt_tab; without the internet, NLTK_DATA names a folder that has it.

The columns: P@5 in percent; the median latency of one text after the other, over HTTP where the peer has it; texts per
second of 16 clients or two threads, and the CPU time of a text meanwhile; resident memory; and the seconds of the
training, with the building of the index. FOLDER keeps what was trained, for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.load import Address, Load, closed_loop, count_errors
from loadtests.processes import cpu_model, cpu_seconds, memory
from loadtests.replica import replica
from recollect.trainer.encoding.pretrained import packaged_folder

_PROGRAMS = Path(__file__).parent
_TOP, _CLIENTS, _WARM_TEXTS, _START_SECONDS = 5, 16, 20, 900
# Annif's projects, set as its documentation says. `annif hyperopt` chose the weights on left-out training bills.
_ANNIF_PROJECTS = {
    "bonsai": "backend=omikuji\ncluster_balanced=False\ncluster_k=100\nmax_depth=3\n",
    "mllm": "backend=mllm\n",
    "ensemble": "backend=ensemble\nsources=bonsai:4,mllm:1\n",
}


class Row(NamedTuple):
    """One row of the table; `precision` is P@5 in percent."""

    peer: str
    precision: float
    p50_ms: float
    per_second: float
    cpu_ms: float
    memory_mb: float
    train_seconds: float


class Benchmark:
    """A dataset, and the folder for everything that is trained.

    Args:
        dataset: Folder with train, test and labels as `.jsonl.gz`, with labels by position.
        folder: Keeps runs, stores and Annif's data.
        limit: Number of test texts.
        seconds: Duration of the load of a server.
    """

    def __init__(self, dataset: Path, folder: Path, limit: int, seconds: float) -> None:
        self.dataset, self.folder, self._seconds = dataset.resolve(), folder.resolve(), seconds
        self.folder.mkdir(parents=True, exist_ok=True)
        self.uids = [str(row["uid"]) for row in self.read("labels")]
        rows = self.read("test")[:limit]
        self._texts = [row["text"] for row in rows]
        self._relevant = [{self.uids[label] for label in row["labels"]} for row in rows]

    def read(self, name: str) -> list[dict[str, Any]]:
        with gzip.open(self.dataset / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def tree(self, peer: str, environment: Path) -> Row:
        """Measure a peer that runs in one process of another environment."""
        command: list[str | Path] = [environment / "bin" / "python", _PROGRAMS / "peer_trees.py", self.dataset, peer]
        limits = ["--limit", str(len(self._texts)), "--top", str(_TOP)]
        printed = subprocess.run([*command, *limits], check=True, stdout=subprocess.PIPE).stdout
        figures = json.loads(printed.splitlines()[-1])
        found = [[self.uids[label] for label in labels] for labels in figures.pop("found")]
        return Row(peer, self._precision(found), **figures)

    def service(self) -> Row:
        """Measure the service that a user would write. Its training is the encoding of all texts at its start."""
        port = _free_port()
        command = [sys.executable, "-m", "uvicorn", "benchmarks.peer_service:app", "--port", str(port)]
        environment = {"DATASET": str(self.dataset), "ENCODER": str(packaged_folder())}
        start = time.perf_counter()
        with _server([*command, "--log-level", "warning"], port, environment) as process:
            seconds = time.perf_counter() - start
            return self._measure("service", Address("127.0.0.1", port), process, seconds, _recollect_request, _uids)

    def recollect(self, name: str, flags: Sequence[str], precision: str) -> Row:
        """Train, tune, build and serve with Recollect."""
        run, store = self.folder / name, self.folder / f"{name}-store"
        seconds = self._timed(
            name,
            [
                ["train", self.dataset, "--out", run, "--overwrite", "--tune", "yes", "--rank", "yes", *flags],
                ["build", run, "--store", store, "--activate", "--precision", precision],
            ],
            [sys.executable, "-m", "recollect"],
        )
        with replica(store, cache_mb=0) as server:
            return self._measure(name, server.address, server.process, seconds, _recollect_request, _uids)

    def annif(self, environment: Path, project: str) -> Row:
        """Train Annif's backends, and measure the REST API of one project: `bonsai` or `ensemble`."""
        folder, programs = self.folder / "annif", environment.resolve() / "bin"
        folder.mkdir(exist_ok=True)
        concept = "http://example.org/{}".format
        labels = self.read("labels")
        (folder / "labels.tsv").write_text(
            "".join(f"<{concept(number)}>\t{_line(row['text'])}\n" for number, row in enumerate(labels))
        )
        with gzip.open(folder / "train.tsv.gz", "wt", encoding="utf-8") as file:
            for row in self.read("train"):
                file.write(f"{_line(row['text'])}\t{' '.join(f'<{concept(label)}>' for label in row['labels'])}\n")
        (folder / "projects.cfg").write_text(
            "".join(
                f"[{name}]\nname={name}\nlanguage=en\nanalyzer=snowball(english)\nvocab=labels\nlimit=100\n{settings}"
                for name, settings in _ANNIF_PROJECTS.items()
            )
        )
        commands = [["load-vocab", "-L", "en", "labels", "labels.tsv"], ["train", "bonsai", "train.tsv.gz"]]
        seconds = self._timed("annif", commands, [programs / "annif"], folder)
        if project == "ensemble":
            seconds += self._timed("ensemble", [["train", "mllm", "train.tsv.gz"]], [programs / "annif"], folder)
        port = _free_port()
        serve = [programs / "gunicorn", "-w", "1", "-k", "uvicorn.workers.UvicornWorker", "-b", f"127.0.0.1:{port}"]

        def request(text: str) -> tuple[str, bytes]:
            content = {"documents": [{"text": text}]}
            return f"/v1/projects/{project}/suggest-batch?limit={_TOP}", json.dumps(content).encode()

        def uids(answer: Any) -> list[str]:
            return [self.uids[int(each["uri"].rpartition("/")[2])] for each in answer[0]["results"]]

        with _server([*serve, "annif:create_app()"], port, folder=folder) as process:
            peer = "annif" if project == "bonsai" else project
            return self._measure(peer, Address("127.0.0.1", port), process, seconds, request, uids)

    def _timed(self, name: str, commands: list[list[Any]], program: list[Any], folder: Path | None = None) -> float:
        """Run commands, and return their time. A later run with the same folder skips them and reads their time."""
        kept = self.folder / f"{name}.seconds"
        if not kept.exists():
            start = time.perf_counter()
            for command in commands:
                subprocess.run([*program, *command], check=True, cwd=folder, stdout=subprocess.DEVNULL)
            kept.write_text(str(time.perf_counter() - start))
        return float(kept.read_text())

    def _measure(
        self,
        peer: str,
        address: Address,
        process: int,
        train_seconds: float,
        request: Callable[[str], tuple[str, bytes]],
        uids: Callable[[Any], list[str]],
    ) -> Row:
        """Measure a server: one client asks every text once, then many clients ask them again and again."""
        requests = [request(text) for text in self._texts]
        found, seconds = [], []
        connection = HTTPConnection(*address)
        for path, body in [*requests[:_WARM_TEXTS], *requests]:
            start = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse().read()
            seconds.append(time.perf_counter() - start)
            found.append(uids(json.loads(answer)))
        connection.close()
        start, cpu = time.perf_counter(), cpu_seconds(process)
        exchanges = closed_loop(Load(address, lambda n: requests[n % len(requests)]), _CLIENTS, self._seconds)
        elapsed, cpu = time.perf_counter() - start, cpu_seconds(process) - cpu
        if errors := count_errors(exchanges):
            raise SystemExit(f"{peer}: {errors} of {len(exchanges)} requests failed")
        return Row(
            peer,
            self._precision(found[_WARM_TEXTS:]),
            1e3 * statistics.median(seconds[_WARM_TEXTS:]),
            len(exchanges) / elapsed,
            1e3 * cpu / len(exchanges),
            memory(process).rss_mb,
            train_seconds,
        )

    def _precision(self, found: list[list[str]]) -> float:
        """P@5 in percent."""
        hits = sum(len(true & set(labels[:_TOP])) for true, labels in zip(self._relevant, found, strict=True))
        return 100 * hits / (_TOP * len(found))


def _recollect_request(text: str) -> tuple[str, bytes]:
    return "/predict", json.dumps({"query": text}).encode()


def _uids(answer: Any) -> list[str]:
    return [label["uid"] for label in answer["labels"]]


def _line(text: str) -> str:
    return " ".join(text.split())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _server(
    command: list[Any], port: int, environment: dict[str, str] | None = None, folder: Path | None = None
) -> Iterator[int]:
    """Run a server until the `with` block ends; yields its process when it answers."""
    process = subprocess.Popen(command, env=os.environ | (environment or {}), cwd=folder)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]}: the server did not start")
            with contextlib.suppress(OSError, HTTPException):
                connection = HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/")
                connection.getresponse().read()
                break
            time.sleep(0.2)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="keeps everything that is trained")
    parser.add_argument("--trees", type=Path, help="environment with PECOS and Omikuji")
    parser.add_argument("--annif", type=Path, help="environment with Annif")
    parser.add_argument("--limit", type=int, default=1000, help="number of test texts; default: 1000")
    parser.add_argument("--seconds", type=float, default=20, help="duration of the load of a server; default: 20")
    options = parser.parse_args(arguments)
    benchmark = Benchmark(options.dataset, options.folder, options.limit, options.seconds)
    peers: list[Callable[[], Row]] = [benchmark.service]
    if options.trees is not None:
        peers += [lambda: benchmark.tree("pecos", options.trees), lambda: benchmark.tree("bonsai", options.trees)]
    if options.annif is not None:
        peers += [lambda: benchmark.annif(options.annif, "bonsai"), lambda: benchmark.annif(options.annif, "ensemble")]
    peers.append(lambda: benchmark.recollect("static", ["--encoder", "static"], "fp32"))
    peers.append(lambda: benchmark.recollect("minilm", ["--max-length", "128"], "int8"))
    print(f"{benchmark.dataset.name}, {len(benchmark.read('test')[: options.limit])} texts, {cpu_model()}\n")
    print("| | P@5 | p50 ms | texts/s | CPU ms | memory MB | training s |\n|---|---|---|---|---|---|---|")
    for measure in peers:
        try:
            row = measure()
        except subprocess.CalledProcessError as error:
            print(f"failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
            continue
        print(
            f"| {row.peer} | {row.precision:.1f} | {row.p50_ms:.2f} | {row.per_second:.0f} | {row.cpu_ms:.2f} | "
            f"{row.memory_mb:.0f} | {row.train_seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
