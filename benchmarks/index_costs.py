"""`python -m benchmarks.index_costs --keys N --dim D --labels L`: the cost of a memory, from keys to answers.

A made-up memory is written, built, opened and asked, by the code that does so with real ones; the last line printed is
JSON. What it opens it has just written, so that files come from the system's cache. One thread searches and combines.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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
from tqdm import tqdm
from transformers import BertConfig, BertModel

from benchmarks.synthetic_memory import SyntheticMemory
from index_builder.build import usable_device, write_bundle
from index_builder.console import say
from index_builder.errors import BuildError
from index_builder.faiss_index import check_factory, factory_string
from index_builder.onnx_export import Sample
from index_builder.recall import exact_neighbours, milliseconds, recall
from index_builder.settings import BuildSettings
from service.bundle.bundle import open_bundle
from service.bundle.manifest import IndexInfo, Manifest
from service.predictor.predictor import Predictor
from service.predictor.scoring import Values, cast_votes, rank
from service.predictor.searcher import Neighbours
from service.threads import threads_or_cores
from trainer.encoder import Encoder, UnitVectorModel
from trainer.memory import open_memory
from trainer.pretrained import PACKAGED, load_pretrained

_TIMED_SECONDS = 60.0
_SAMPLED_SECONDS = 0.02
# What is asked: RAE-XMC's b, both parts of the memory at once.
_TOP_B, _LAMBDA, _TEMPERATURE = 200, 0.5, 0.04
_DIM_OF_A_HEAD, _SAMPLE_TEXTS = 32, 64
# Flags that are settings of `recollect build`; given here alone, whatever its environment says.
_AS_OF_BUILD = (
    *("index", "recall_target", "memory_budget", "latency_budget_ms"),
    *("precision", "device", "threads"),
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """The JSON line; seconds and milliseconds are wall-clock times, MB are 10^6 bytes.

    Attributes:
        keys: Instances and labels.
        build_seconds: From the memory folder to a bundle that is whole.
        peak_mb: Most memory held while building; pages of mapped files, which the system may take back, left out.
        index_mb: Both indexes on disk.
        bytes_per_key: The same over the keys.
        open_seconds: From the closed bundle to the first answer, every file's checksum included, files cached.
        recall: Share of the exact top 200, over queries that the memory does not hold.
        search_p50_ms: A query's search, alone on one thread.
        combine_ms: From found keys to ranked labels, likewise; median.
        chosen: Each part's index and the effort at which it is searched.
    """

    keys: int
    dim: int
    labels: int
    pairs: int
    build_seconds: float
    peak_mb: float
    index_mb: float
    bundle_mb: float
    bytes_per_key: float
    open_seconds: float
    recall: float
    search_p50_ms: float
    search_p99_ms: float
    combine_ms: float
    threads: int
    chosen: dict[str, str]


def measure(made_up: SyntheticMemory, queries: int, settings: BuildSettings) -> Measured:
    """Write, build, open and ask a made-up memory.

    Args:
        made_up: The memory.
        queries: How many it is asked, none of them a key.
        settings: How to build; `run` and `store` are folders to work in, not yet there.

    Raises:
        BuildError: If faiss rejects the index asked for, or no encoder has keys of that size.
    """
    threads = threads_or_cores(settings.threads)
    faiss.omp_set_num_threads(threads)
    torch.set_num_threads(threads)
    if settings.index != "auto":
        check_factory(factory_string(settings.index, made_up.labels), made_up.dim)
    encoder = _encoder(made_up.dim)
    texts = [f"What the encoder is asked, {number}" for number in range(_SAMPLE_TEXTS)]
    sample = Sample(texts, encoder.encode(texts, encoder.config.max_length))
    with tqdm(total=made_up.keys, unit="key", unit_scale=True, desc="make up") as bar:
        made_up.write(settings.run / "memory", bar.update)
    memory = open_memory(settings.run / "memory")
    bundle = Path(settings.store)
    bundle.mkdir()
    start = time.perf_counter()
    with _peak_memory() as peak:
        manifest, _ = write_bundle(memory, encoder, sample, bundle, settings, usable_device(settings))
    built = time.perf_counter() - start
    say("open, and ask")
    start = time.perf_counter()
    predictor = Predictor.open(open_bundle(bundle), threads)
    opened = time.perf_counter() - start
    asked = made_up.queries(queries)
    exact, found = exact_neighbours(memory.keys, asked, _TOP_B), predictor.searcher.search(asked, _TOP_B, _LAMBDA)
    searching = milliseconds(lambda query: predictor.searcher.search(query, _TOP_B, _LAMBDA), asked, _TIMED_SECONDS)
    index_bytes = sum(manifest.files[f"{part}_keys.faiss"].size for part in ("instance", "label"))
    return Measured(
        keys=made_up.keys,
        dim=made_up.dim,
        labels=made_up.labels,
        pairs=manifest.counts.pairs,
        build_seconds=round(built, 2),
        peak_mb=round(max(peak) / 1e6, 1),
        index_mb=round(index_bytes / 1e6, 1),
        bundle_mb=round(manifest.size_bytes / 1e6, 1),
        bytes_per_key=round(index_bytes / made_up.keys, 1),
        open_seconds=round(opened, 3),
        recall=round(recall(found.keys, memory.keys, asked, exact), 4),
        search_p50_ms=round(float(np.median(searching)), 3),
        search_p99_ms=round(float(np.percentile(searching, 99)), 3),
        combine_ms=round(_combine_milliseconds(found, predictor.values), 3),
        threads=threads,
        chosen=_chosen(manifest),
    )


def _encoder(dim: int) -> Encoder:
    """The packaged encoder; where keys have another size, one of its shape and random weights."""
    packaged = load_pretrained(PACKAGED, "auto", max_length=128, label_max_length=128, device="cpu")
    if packaged.dim == dim:
        return packaged
    heads = max(1, dim // _DIM_OF_A_HEAD)
    if dim % heads:
        raise BuildError(f"--dim {dim}: expected a multiple of the {heads} attention heads; take a multiple of 32")
    shape = BertConfig(
        vocab_size=packaged.tokenizer.get_vocab_size(),
        hidden_size=dim,
        num_hidden_layers=packaged.model.transformer.config.num_hidden_layers,
        num_attention_heads=heads,
        intermediate_size=4 * dim,
    )
    model = UnitVectorModel(BertModel(shape, add_pooling_layer=False), "mean")
    config = dataclasses.replace(packaged.config, name="random weights", pooling="mean")
    return Encoder(config, model, packaged.tokenizer, packaged.pad_id, "cpu")


def _combine_milliseconds(found: Neighbours, values: Values) -> float:
    spent = []
    for query in range(len(found.keys)):
        one = Neighbours(found.similarities[query : query + 1], found.keys[query : query + 1])
        start = time.perf_counter()
        rank(cast_votes(one, _TEMPERATURE, _LAMBDA, values), values)
        spent.append(time.perf_counter() - start)
    return 1e3 * float(np.median(spent))


def _chosen(manifest: Manifest) -> dict[str, str]:
    def describe(info: IndexInfo) -> str:
        return f"{info.factory}, effort {info.effort}" + (f", refine {info.refine:g}" if info.refine > 1 else "")

    return {"instances": describe(manifest.index.instances), "labels": describe(manifest.index.labels)}


@contextlib.contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Bytes of this process that no file holds, looked at again and again in the background."""
    samples, ended = [_private_bytes()], threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLED_SECONDS):
            samples.append(_private_bytes())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()


def _private_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {number}")
    return number


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_costs", description=__doc__)
    parser.add_argument("--keys", type=_count, required=True, help="instances and labels")
    parser.add_argument("--dim", type=_count, required=True, help="size of a key")
    parser.add_argument("--labels", type=_count, required=True, help="those of the keys that are labels'")
    parser.add_argument("--labels-per-instance", type=_count, default=22, help="roughly, on average; 22 unless told")
    parser.add_argument("--queries", type=_count, default=500, help="how many to ask; 500 unless told")
    parser.add_argument("--index", default="auto", help="as of `recollect build`; auto unless told")
    parser.add_argument("--recall-target", default=0.98, help="as of `recollect build`; .98 unless told")
    parser.add_argument("--memory-budget", help="as of `recollect build`; none unless told")
    parser.add_argument("--latency-budget-ms", help="as of `recollect build`; none unless told")
    parser.add_argument("--precision", default="fp32", help="as of `recollect build`; fp32 unless told")
    parser.add_argument("--device", default="cpu", help="as of `recollect build`; cpu unless told")
    parser.add_argument("--threads", type=int, default=0, help="to build with; one a core unless told")
    parser.add_argument("--folder", type=Path, help="to work in, kept; a temporary one unless told")
    parser.add_argument("--seed", type=_count, default=1, help="of what is made up; 1 unless told")
    given = parser.parse_args(arguments)
    with contextlib.ExitStack() as scratch:
        folder = given.folder or Path(scratch.enter_context(tempfile.TemporaryDirectory()))
        settings: dict[str, Any] = {name: getattr(given, name) for name in _AS_OF_BUILD}
        settings |= {"run": folder / "run", "store": folder / "bundle"}
        try:
            if given.labels >= given.keys:
                raise BuildError(f"--labels {given.labels}: expected fewer than the {given.keys:,} keys")
            if folder.exists() and any(folder.iterdir()):
                raise BuildError(f"--folder {folder}: expected an empty folder, or none yet")
            instances = given.keys - given.labels
            made_up = SyntheticMemory(instances, given.labels, given.dim, given.labels_per_instance, given.seed)
            measured = measure(made_up, given.queries, BuildSettings(**settings))
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
