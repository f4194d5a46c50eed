"""`python -m benchmarks.index_costs --keys N --dim D --labels L`: cost of a memory, from keys to answers.

The benchmark writes a synthetic memory, builds a bundle from it, opens the bundle and queries it, with the code of the
product. The last line of the output is JSON. All files were just written, so reads come from the page cache. Searching
and combining use one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from pydantic import ValidationError
from transformers import BertConfig, BertModel

from benchmarks.synthetic_memory import SyntheticMemory
from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.manifest import IndexInfo, Manifest
from recollect.core.bundle.values import Values
from recollect.core.neighbours import Found
from recollect.core.options import Voting
from recollect.core.predictor import Predictor
from recollect.core.scoring import vote
from recollect.core.system.console import print_status, progress_bar
from recollect.core.system.threads import threads_or_cores
from recollect.index_builder.build import write_bundle
from recollect.index_builder.draft import Draft, usable_device
from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import check_factory, factory_string
from recollect.index_builder.onnx_export import Sample
from recollect.index_builder.recall import exact_neighbours, recall, search_milliseconds
from recollect.index_builder.settings import BuildSettings
from recollect.trainer.encoding.encoder import Encoder, UnitVectorModel
from recollect.trainer.encoding.pooling import Pooler
from recollect.trainer.encoding.pretrained import PACKAGED, load_pretrained
from recollect.trainer.memory.memory import open_memory

_TIMED_SECONDS = 60.0
_SAMPLED_SECONDS = 0.02
# Options of the queries: the b of RAE-XMC, and a lambda at which instances and labels vote.
_VOTING = Voting(lambda_=0.5, temperature=0.04, top_b=200)
_HEAD_DIM, _SAMPLE_TEXTS = 32, 64
# Flags that are also settings of `recollect build`. The environment variables of `recollect build` have no effect here.
_BUILD_FLAGS = ("index", "recall_target", "device", "threads")


@dataclasses.dataclass(frozen=True)
class Measured:
    """The JSON line. Times are wall-clock times; 1 MB is 10^6 bytes.

    Attributes:
        keys: Number of instances and labels together.
        build_seconds: Time from the memory folder to a complete bundle.
        peak_mb: Peak memory of the build, without pages of mapped files, which the system can reclaim.
        index_mb: Size of both indexes on disk.
        bytes_per_key: Size of both indexes divided by the number of keys.
        open_seconds: Time to open the bundle and answer once, with checksums of all files; files are cached.
        recall: Recall of the exact top 200 keys, for queries outside the memory.
        search_p50_ms: Median time to search the keys for a single query on one thread.
        combine_ms: Median time from found keys to ranked labels, for a single query on one thread.
        chosen: The chosen index of the instances and of the labels, and the search effort of each index.
    """

    keys: int
    dim: int
    labels: int
    pairs: int
    build_seconds: float
    peak_mb: float
    index_mb: float
    bytes_per_key: float
    open_seconds: float
    recall: float
    search_p50_ms: float
    search_p99_ms: float
    combine_ms: float
    chosen: dict[str, str]


def measure(synthetic: SyntheticMemory, queries: int, settings: BuildSettings) -> Measured:
    """Write, build, open and query a synthetic memory.

    Args:
        synthetic: The memory.
        queries: Number of queries; none of them is a key.
        settings: Build settings. `run` and `store` are working folders that do not exist yet.

    Raises:
        BuildError: If faiss rejects the requested index, or no encoder has this dimension.
    """
    threads = threads_or_cores(settings.threads)
    faiss.omp_set_num_threads(threads)
    torch.set_num_threads(threads)
    if settings.index != "auto":
        check_factory(factory_string(settings.index, synthetic.labels), synthetic.dim)
    encoder = _encoder(synthetic.dim)
    texts = [f"Query {number} of the sample" for number in range(_SAMPLE_TEXTS)]
    sample = Sample(texts, encoder.encode(texts, encoder.config.max_length))
    with progress_bar(synthetic.keys, "key", "generate") as bar:
        synthetic.write(settings.run / "memory", bar.update)
    memory = open_memory(settings.run / "memory")
    bundle = Path(settings.store)
    bundle.mkdir()
    start = time.perf_counter()
    with _peak_memory() as peak:
        new = Draft(bundle, settings, usable_device(settings))
        write_bundle(memory, encoder, sample, new, settings)
    built, manifest = time.perf_counter() - start, new.manifest
    print_status("open and query")
    start = time.perf_counter()
    predictor = Predictor.open(open_bundle(bundle), threads)
    opened = time.perf_counter() - start
    vectors = synthetic.queries(queries)
    search = functools.partial(predictor.memory.searcher.search, top_b=_VOTING.top_b)
    exact, found = exact_neighbours(memory.keys, vectors, _VOTING.top_b), search(vectors)
    nearest = found.nearest(_VOTING.top_b, _VOTING.lambda_, predictor.memory.values.instances)
    search_times = search_milliseconds(search, vectors, _TIMED_SECONDS)
    index_bytes = sum(manifest.files[f"{part}_keys.faiss"].size for part in ("instance", "label"))
    return Measured(
        keys=synthetic.keys,
        dim=synthetic.dim,
        labels=synthetic.labels,
        pairs=manifest.counts.pairs,
        build_seconds=round(built, 2),
        peak_mb=round(max(peak) / 1e6, 1),
        index_mb=round(index_bytes / 1e6, 1),
        bytes_per_key=round(index_bytes / synthetic.keys, 1),
        open_seconds=round(opened, 3),
        recall=round(recall(nearest.keys, memory.keys, vectors, exact), 4),
        search_p50_ms=round(float(np.median(search_times)), 3),
        search_p99_ms=round(float(np.percentile(search_times, 99)), 3),
        combine_ms=round(_combine_milliseconds(found, predictor.memory.values), 3),
        chosen=_chosen(manifest),
    )


def _encoder(dim: int) -> Encoder:
    """An encoder of one layer with random weights: no figure depends on the encoder."""
    packaged = load_pretrained(PACKAGED, "auto", max_length=128, label_max_length=128, device="cpu")
    heads = max(1, dim // _HEAD_DIM)
    if dim % heads:
        raise BuildError(f"--dim {dim}: expected a multiple of the {heads} attention heads; use a multiple of 32")
    shape = BertConfig(
        vocab_size=packaged.tokenizer.get_vocab_size(),
        hidden_size=dim,
        num_hidden_layers=1,
        num_attention_heads=heads,
        intermediate_size=4 * dim,
    )
    model = UnitVectorModel(BertModel(shape, add_pooling_layer=False), Pooler("mean"))
    config = dataclasses.replace(packaged.config, name="random weights", pooling="mean")
    return Encoder(config, model, packaged.tokenizer, packaged.pad_id, "cpu")


def _combine_milliseconds(found: Found, values: Values) -> float:
    spent = []
    for query in range(len(found.labels.keys)):
        one = found[query : query + 1]
        start = time.perf_counter()
        vote(one, _VOTING, values).scores.best()
        spent.append(time.perf_counter() - start)
    return 1e3 * float(np.median(spent))


def _chosen(manifest: Manifest) -> dict[str, str]:
    def describe(info: IndexInfo) -> str:
        return f"{info.factory}, effort {info.effort}" + (f", refine {info.refine:g}" if info.refine > 1 else "")

    return {"instances": describe(manifest.index.instances), "labels": describe(manifest.index.labels)}


@contextlib.contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Sample this process's anonymous memory in the background, in bytes."""
    samples, ended = [_anonymous_bytes()], threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLED_SECONDS):
            samples.append(_anonymous_bytes())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


def positive_int(text: str) -> int:
    """A whole number of at least 1, as the type of an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
    return int(text)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_costs", description=__doc__)
    parser.add_argument("--keys", type=positive_int, required=True, help="number of instances and labels together")
    parser.add_argument("--dim", type=positive_int, required=True, help="dimension of a key")
    parser.add_argument("--labels", type=positive_int, required=True, help="number of labels among the keys")
    parser.add_argument(
        "--labels-per-instance",
        type=positive_int,
        default=22,
        help="approximate mean number of labels of an instance; default: 22",
    )
    parser.add_argument("--queries", type=positive_int, default=500, help="number of queries; default: 500")
    parser.add_argument("--index", default="auto", help="see `recollect build`; default: auto")
    parser.add_argument("--recall-target", default=0.98, help="see `recollect build`; default: 0.98")
    parser.add_argument("--device", default="cpu", help="see `recollect build`; default: cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads that build; default: one for each core")
    parser.add_argument("--folder", type=Path, help="working folder, kept afterwards; default: a temporary folder")
    given = parser.parse_args(arguments)
    with contextlib.ExitStack() as scratch:
        folder = given.folder or Path(scratch.enter_context(tempfile.TemporaryDirectory()))
        settings: dict[str, Any] = {name: getattr(given, name) for name in _BUILD_FLAGS}
        settings |= {"run": folder / "run", "store": folder / "bundle"}
        try:
            if given.labels >= given.keys:
                raise BuildError(f"--labels {given.labels}: expected fewer than the {given.keys:,} keys")
            if folder.exists() and any(folder.iterdir()):
                raise BuildError(f"--folder {folder}: expected an empty or absent folder")
            instances = given.keys - given.labels
            synthetic = SyntheticMemory(instances, given.labels, given.dim, given.labels_per_instance)
            measured = measure(synthetic, given.queries, BuildSettings(**settings))
        except ValidationError as error:
            problem = error.errors()[0]
            flag = str(problem["loc"][0]).replace("_", "-")
            parser.error(f"--{flag}: expected {problem['msg'].removeprefix('Input should be ')}")
        except BuildError as error:
            parser.error(str(error))
        except OSError as error:
            parser.error(f"{error.filename or 'system'}: {error.strerror or error}")
    print(json.dumps(dataclasses.asdict(measured)))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
