"""A sentence-transformers model with layers and prompts: its own vectors decide the answers at every door."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch

import recollect
from recollect.trainer.errors import TrainingError
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import TOPICS, write_topics
from tests.formula import label_scores
from tests.processes import call, serving, write_lines
from tests.tiny_runs import write_tiny_encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROMPTS = {"query": "find: ", "document": "a label named "}
QUERIES = ["Who must pay", "a mass in an old church", "x", "A vaccine against malaria is tried in three countries"]
NEW_LABEL, NEW_TEXT = "Gardening", "garlic grows in a garden"
LAMBDA, TAU, TOP_B = 0.4, 0.05, 12


class Served(NamedTuple):
    folder: Path
    model: SentenceTransformer
    url: str

    def scores(self, grown: bool = False) -> np.ndarray:
        """The scores of all labels for the queries, in float64, from the vectors of sentence-transformers."""
        rows = [json.loads(line) for line in (self.folder / "dataset" / "train.jsonl").read_text().splitlines()]
        labels = [*TOPICS, *([NEW_LABEL] if grown else [])]
        rows += [{"text": NEW_TEXT, "labels": [NEW_LABEL]}] if grown else []
        y = np.array([[uid in row["labels"] for uid in labels] for row in rows], dtype=float)
        encode_query, encode_label = self.model.encode_query, self.model.encode_document
        instances, queries = (
            encode_query(texts, normalize_embeddings=True) for texts in ([r["text"] for r in rows], QUERIES)
        )
        return label_scores(queries, instances, encode_label(labels, normalize_embeddings=True), y, LAMBDA, TAU, TOP_B)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    folder = tmp_path_factory.mktemp("prompts")
    write_topics(folder / "dataset")
    torch.manual_seed(3)
    transformer = Transformer(str(write_tiny_encoder(folder / "encoder", "bert")))
    modules = [transformer, Pooling(32, ("mean", "max")), Dense(64, 24, activation_function=torch.nn.Tanh())]
    model = SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu")
    model.save(str(folder / "model"))
    model.max_seq_length = 64
    encoder = ["--encoder", folder / "model", "--max-length", 64, "--label-max-length", 64]
    call("train", folder / "dataset", "--out", folder / "run", "--epochs", 0, *encoder)
    call("build", folder / "run", "--store", folder / "store", "--index", "flat", "--lexical", "off", "--activate")
    with serving(folder / "store") as server:
        yield Served(folder, model, server.url)


def matrix(answers: list[list[dict[str, Any]]], labels: list[str]) -> np.ndarray:
    found = [{label["uid"]: label["score"] for label in answer} for answer in answers]
    return np.array([[each.get(uid, 0.0) for uid in labels] for each in found])


OPTIONS = {"lambda": LAMBDA, "temperature": TAU, "top_b": TOP_B, "top_k": 9}
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


def test_answers_over_http_use_the_prompts(served: Served) -> None:
    answer = httpx.post(f"{served.url}/predict/batch", json={"queries": QUERIES, **OPTIONS}).raise_for_status().json()
    found = matrix([each["labels"] for each in answer["results"]], list(TOPICS))
    np.testing.assert_allclose(found, served.scores(), **CLOSE)
    encoder = httpx.get(f"{served.url}/version").json()["encoder"]
    assert (encoder["query_prompt"], encoder["label_prompt"]) == tuple(PROMPTS.values())


def test_bulk_answers_use_the_prompts(served: Served, tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [{"text": query} for query in QUERIES])
    flags = ["--lambda", LAMBDA, "--temperature", TAU, "--top-b", TOP_B, "--top-k", 9, "--workers", 1]
    files = ["--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"]
    call("predict", "--store", served.folder / "store", *files, *flags)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(matrix([row["labels"] for row in rows], list(TOPICS)), served.scores(), **CLOSE)


@pytest.mark.parametrize("door", ["python", "extend", "compacted"])
def test_live_instances_and_labels_use_their_own_prompts(served: Served, door: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(served.folder / "store", store)
    label, instance = {"uid": NEW_LABEL, "text": NEW_LABEL}, {"uid": "new", "text": NEW_TEXT, "labels": [NEW_LABEL]}
    if door == "extend":
        call("extend", store, "--add", write_lines(tmp_path / "new.jsonl", [label, instance]))
    else:
        recollect.open(store, live="write").add(labels=[label], instances=[instance])
    if door == "compacted":
        call("compact", store, "--index", "SQfp16", "--activate")  # stores no exact keys ...
        recollect.open(store, live="write").learn("unrelated", NEW_LABEL, relevant=False)
        call("compact", store, "--index", "flat", "--activate")  # ... so the texts are encoded again
    answers = recollect.open(store).predict(QUERIES, lambda_=LAMBDA, temperature=TAU, top_b=TOP_B, top_k=9)
    found = matrix([[label._asdict() for label in answer] for answer in answers], [*TOPICS, NEW_LABEL])
    np.testing.assert_allclose(found, served.scores(grown=True), **CLOSE)


def test_prompt_for_a_static_encoder_is_refused() -> None:
    with pytest.raises(
        TrainingError, match="--label-prompt: expected an encoder with a transformer, found --encoder s"
    ):
        TrainSettings(dataset=Path("d"), out=Path("o"), encoder="static", label_prompt="a label named ")
