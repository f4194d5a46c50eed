from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from recollect.core.answers import Answer
from recollect.core.errors import BundleError
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor
from recollect.store.store import Store
from recollect.trainer.memory.memory import Memory, open_memory
from tests.formula import label_scores

QUERIES = ["Who must pay tax on the sale of a house", "Photographs of galaxies", "When is a contract void in court"]


@pytest.fixture(params=["faiss", "milvus"])
def predictor(request: pytest.FixtureRequest, predictor: Predictor) -> Predictor:
    """The same memory, with its keys in files and in Milvus."""
    found: Predictor = predictor if request.param == "faiss" else request.getfixturevalue("milvus_predictor")
    return found


@pytest.fixture(scope="module")
def memory(built: Any) -> Memory:
    return open_memory(built.run / "memory")


def ask(predictor: Predictor, query: str, **chosen: Any) -> Answer:
    return predictor.predict([query], resolve_options(predictor.defaults, **chosen)).answers[0]


def scores(answer: Answer) -> dict[str, float]:
    return {label.uid: label.score for label in answer.labels}


@pytest.mark.parametrize(("top_b", "temperature"), [(1, 0.04), (5, 1.0), (20, 0.01), (200, 0.04), (200, 1.0)])
@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.5, 1.0])
def test_scores_equal_the_dense_formula_over_the_keys_of_the_memory(
    predictor: Predictor, memory: Memory, lambda_: float, temperature: float, top_b: int
) -> None:
    options = resolve_options(predictor.defaults, lambda_=lambda_, temperature=temperature, top_b=top_b)
    instances, labels = memory.plan.instances, memory.plan.labels
    found, y = np.zeros((len(QUERIES), labels)), memory.label_sets.to_csr(labels).toarray()
    for row, answer in zip(found, predictor.predict(QUERIES, options).answers, strict=True):
        row[[label.position for label in answer.labels]] = [label.score for label in answer.labels]
    keys = memory.keys[:instances], memory.keys[instances:]
    expected = label_scores(predictor.encode(QUERIES), *keys, y, lambda_, temperature, top_b)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_explanation_lists_terms_by_size_and_their_sum_is_the_score(predictor: Predictor, lambda_: float) -> None:
    options = resolve_options(predictor.defaults, lambda_=lambda_, explain=True)
    for answer in predictor.predict(QUERIES, options).answers:
        for label in answer.labels:
            assert label.because is not None
            shares = [reason.share for reason in label.because]
            assert sum(shares) == pytest.approx(label.score, abs=1e-6)
            assert shares == sorted(shares, reverse=True)
            kinds = {reason.kind for reason in label.because}
            assert kinds <= {0.0: {"label"}, 1.0: {"instance"}}.get(lambda_, {"label", "instance"})


@pytest.mark.parametrize("filtered", [False, True])
def test_batch_gets_the_same_answers_as_single_queries(predictor: Predictor, filtered: bool) -> None:
    chosen: dict[str, Any] = {"explain": True}
    if filtered:  # the first query finds its label at once, the other queries need more keys
        chosen |= {"top_b": 1, "top_k": 1, "allow": ("Taxation",)}
    together = predictor.predict(QUERIES, resolve_options(predictor.defaults, **chosen)).answers
    for query, answer in zip(QUERIES, together, strict=True):
        alone = ask(predictor, query, **chosen)
        assert scores(answer) == pytest.approx(scores(alone), abs=1e-5)
        assert list(scores(answer)) == list(scores(alone))


@pytest.mark.parametrize(
    ("change", "file"), [({"dim": 383}, "encoder.onnx"), ({"counts": {"instances": 27}}, "instance_keys.faiss")]
)
def test_bundle_is_refused_if_encoder_and_indexes_have_different_dimensions(
    built: Any, change: dict[str, Any], file: str
) -> None:
    bundle = Store(built.store).open(built.version)
    manifest = bundle.manifest
    if "counts" in change:
        change = {"counts": manifest.counts.model_copy(update=change["counts"])}
    bundle = dataclasses.replace(bundle, manifest=manifest.model_copy(update=change))
    with pytest.raises(BundleError, match=rf"{file}: the manifest states the shape .*, found .*; rebuild"):
        Predictor(bundle, threads=1)


def test_large_batch_is_ranked_in_blocks_of_limited_memory(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [f"a query about taxes, number {number}" for number in range(9)]
    whole = predictor.predict(queries, resolve_options(predictor.defaults)).answers
    monkeypatch.setattr(Predictor, "block_keys", 400)  # one block has two queries of 200 keys each
    parts = predictor.predict(queries, resolve_options(predictor.defaults)).answers
    for part, expected in zip(parts, whole, strict=True):
        assert scores(part) == pytest.approx(scores(expected), abs=1e-6)
