from __future__ import annotations

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from recollect.service.errors import BundleError
from recollect.service.options import resolve_options
from recollect.service.predictor.answers import Answer
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.store import Store
from recollect.trainer.memory.memory import Memory, open_memory

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


def reference(memory: Memory, vector: np.ndarray, lambda_: float, temperature: float, top_b: int) -> np.ndarray:
    """Scores of the dense formula in float64, over the parts of the memory to which lambda gives weight."""
    instances, labels = memory.plan.instances, memory.plan.labels
    votes = np.zeros((instances, labels))
    for row in range(instances):
        votes[row, memory.value_indices[memory.value_indptr[row] : memory.value_indptr[row + 1]]] = 1
    values = np.concatenate([lambda_ * votes, (1 - lambda_) * np.eye(labels)])
    part = {0.0: slice(instances, None), 1.0: slice(instances)}.get(lambda_, slice(None))
    similarities, values = memory.keys[part].astype(np.float64) @ vector.astype(np.float64), values[part]
    best = np.argsort(-similarities, kind="stable")[:top_b]
    weights = np.exp((similarities[best] - similarities[best].max()) / temperature)
    return weights / weights.sum() @ values[best]


@pytest.mark.parametrize("top_b", [1, 5, 20, 200])
@pytest.mark.parametrize("temperature", [0.01, 0.04, 1.0])
@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.5, 1.0])
def test_scores_equal_the_dense_formula_over_the_keys_of_the_memory(
    predictor: Predictor, memory: Memory, lambda_: float, temperature: float, top_b: int
) -> None:
    options = resolve_options(predictor.defaults, lambda_=lambda_, temperature=temperature, top_b=top_b)
    for answer, vector in zip(predictor.predict(QUERIES, options).answers, predictor.encode(QUERIES), strict=True):
        expected = reference(memory, vector, lambda_, temperature, top_b)
        found = np.zeros(len(expected))
        found[[label.position for label in answer.labels]] = [label.score for label in answer.labels]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_queries_get_their_true_label_as_the_best_label(predictor: Predictor, built: Any) -> None:
    rows = [json.loads(line) for line in (built.dataset / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    answers = predictor.predict([row["text"] for row in rows], resolve_options(predictor.defaults, top_k=1)).answers
    assert [[answer.labels[0].uid] for answer in answers] == [row["labels"] for row in rows]


def test_answer_has_top_k_labels_sorted_by_falling_score(predictor: Predictor) -> None:
    labels = ask(predictor, QUERIES[0], top_k=3).labels
    assert [label.uid for label in labels] == [predictor.bundle.labels.uids[label.position] for label in labels]
    assert [label.score for label in labels] == sorted((label.score for label in labels), reverse=True)
    assert (len(labels), labels[0].text, labels[0].because) == (3, "Taxation", None)


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


def test_explanation_names_the_instances_that_voted_for_the_label(predictor: Predictor) -> None:
    best = ask(predictor, "A bill to lower the income tax of small farms", explain=True).labels[0].because
    assert best is not None
    assert (best[0].kind, best[0].uid) == ("instance", "Taxation/0")
    assert best[0].text == "A bill to lower the income tax of small farms"


def test_labels_with_a_score_below_the_threshold_are_not_returned(predictor: Predictor) -> None:
    everything = scores(ask(predictor, QUERIES[0]))
    assert scores(ask(predictor, QUERIES[0], threshold=0.05)) == {u: s for u, s in everything.items() if s >= 0.05}
    assert ask(predictor, QUERIES[0], threshold=1.0).labels == []
    exactly = everything["Law"]
    assert "Law" in scores(ask(predictor, QUERIES[0], threshold=exactly))


def test_denied_labels_are_replaced_by_the_next_best_labels(predictor: Predictor) -> None:
    first = ask(predictor, QUERIES[0], top_b=1, lambda_=1.0)
    assert list(scores(first)) == ["Taxation"]
    denied = ask(predictor, QUERIES[0], top_b=1, lambda_=1.0, top_k=3, deny=("Taxation",))
    assert len(denied.labels) == 3
    assert "Taxation" not in scores(denied)
    assert not denied.exhausted


def test_only_allowed_labels_are_returned_even_if_they_are_dissimilar(predictor: Predictor) -> None:
    answer = ask(predictor, QUERIES[0], top_b=1, top_k=2, allow=("Football", "Cooking"))
    assert scores(answer).keys() == {"Football", "Cooking"}
    assert not answer.exhausted


def test_answer_is_exhausted_if_the_filter_admits_fewer_than_top_k_labels(predictor: Predictor) -> None:
    allow = ("Taxation", "Law", "a label of another version")
    fewer = ask(predictor, QUERIES[0], top_k=3, allow=allow)
    assert (scores(fewer).keys(), fewer.exhausted) == ({"Taxation", "Law"}, True)
    both = ask(predictor, QUERIES[0], allow=allow, deny=("Law",))
    assert (scores(both).keys(), both.exhausted) == ({"Taxation"}, True)
    for nothing in ((), ("a label of another version",)):
        answer = ask(predictor, QUERIES[0], allow=nothing)
        assert (answer.labels, answer.exhausted) == ([], True)
    untrained = ask(predictor, QUERIES[0], lambda_=1.0, top_k=1, allow=("Never seen",))
    assert (untrained.labels, untrained.exhausted) == ([], True)


def test_answer_without_a_filter_is_never_exhausted(predictor: Predictor) -> None:
    assert not ask(predictor, QUERIES[0], top_b=1, top_k=500).exhausted


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


def test_query_that_exceeds_the_token_limit_of_the_encoder_is_marked_truncated(predictor: Predictor) -> None:
    answers = predictor.predict(["tax", "tax " * 500], resolve_options(predictor.defaults)).answers
    assert [answer.truncated for answer in answers] == [False, True]


def test_predictor_returns_no_answers_for_an_empty_batch(predictor: Predictor) -> None:
    assert predictor.predict([], resolve_options(predictor.defaults)).answers == []


def test_times_of_all_stages_are_returned(predictor: Predictor) -> None:
    stages = predictor.predict(QUERIES, resolve_options(predictor.defaults)).milliseconds
    assert list(stages) == ["tokenize", "encode", "search", "combine"]
    assert min(stages.values()) >= 0


def test_concurrent_threads_get_the_same_answers_as_one_thread(predictor: Predictor) -> None:
    options = resolve_options(predictor.defaults, explain=True)
    alone = [predictor.predict([query], options).answers[0] for query in QUERIES]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda query: predictor.predict([query], options).answers[0], QUERIES * 10))
    assert answers == alone * 10


def test_every_calling_thread_sets_the_number_of_search_threads(predictor: Predictor) -> None:
    found: list[int] = []

    def search() -> None:
        faiss.omp_set_num_threads(2)
        ask(predictor, QUERIES[0])
        found.append(faiss.omp_get_max_threads())

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert found == [1]


def test_options_that_the_caller_does_not_choose_come_from_the_bundle(predictor: Predictor) -> None:
    options = resolve_options(predictor.defaults, top_k=3, lambda_=None)
    assert (options.lambda_, options.temperature, options.top_b, options.top_k) == (0.5, 0.04, 200, 3)


@pytest.mark.parametrize(
    ("change", "file"),
    [({"dim": 383}, "encoder.onnx"), ({"counts": {"instances": 27}}, "instance_keys.faiss")],
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
    monkeypatch.setattr(
        "recollect.service.predictor.predictor.Predictor.block_keys", 400
    )  # one block has two queries of 200 keys each
    for parts, expected in zip(
        predictor.predict(queries, resolve_options(predictor.defaults)).answers, whole, strict=True
    ):
        assert scores(parts) == pytest.approx(scores(expected), abs=1e-6)
