"""A cross-encoder: its training, its files, and answers with and without it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import recollect
from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import CROSS_ENCODER, CROSS_FILES, CROSS_RANKER, CROSS_TOKENIZER, STEM_FILES
from recollect.core.encoder import open_session
from recollect.core.errors import BundleError, QueryError
from recollect.core.options import checked_options
from recollect.core.reranker.cross_encoder import CrossEncoder, PairTokenizer
from recollect.core.reranker.cross_ranker import CrossRanker
from recollect.core.reranker.scorer import Pair
from recollect.core.tokenizer import open_tokenizer
from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError, NothingToRank
from recollect.index_builder.settings import BuildSettings, RankSettings
from recollect.model import Model, open_model
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import made_once
from tests.index_builder.reranker.conftest import write_names
from tests.processes import serving, until
from tests.tiny_runs import write_tiny_encoder

QUERIES = ["amber instead of basil", "lemon unlike kelp", "something else", "jade and also ivory"]


class CrossedRun(NamedTuple):
    """A run with a cross-encoder, and a store with a version of it. Tests must not change them."""

    run: Path
    store: Path


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> CrossedRun:
    folder = made_once(tmp_path_factory, "crossed", rank_names)
    return CrossedRun(folder / "run", folder / "store")


def rank_names(folder: Path) -> None:
    """The cross-encoder learns so little from 300 texts that `rank` may not keep it; it is written nevertheless."""
    from recollect.index_builder.reranker.artefact import read_held_out, read_ranker, write_ranker
    from recollect.index_builder.reranker.cross_rank import FirstRanker, fit_cross_ranker, open_score_source
    from recollect.index_builder.reranker.examples import ExampleSource
    from recollect.index_builder.reranker.fit import SHAPES, CrossFitted

    dataset, run = write_names(folder / "dataset", 600), folder / "run"
    encoder = write_tiny_encoder(folder / "encoder", "bert")
    write_run(TrainSettings(epochs=0, dataset=dataset, out=run, encoder=str(encoder), max_length=64))
    settings = RankSettings(
        run=run, threads=1, queries=300, cross_encoder=True, minutes=0.5, cross_encoder_candidates=5
    )
    report = recollect.rank(run, threads=1, queries=300, classifier="off")
    assert report["kept"]
    memory, source = open_memory(run / "memory"), ExampleSource(open_memory(run / "memory"), with_words=True)
    rows = np.sort(np.random.default_rng(0).permutation(memory.plan.instances)[:300])
    fold = np.arange(300) % 3
    examples = source.cross(rows, fold)
    ranker = read_ranker(memory)
    first = FirstRanker(source, rows, CrossFitted.of(examples, fold, SHAPES[0], 1), ranker)
    second = fit_cross_ranker(memory, settings, open_score_source(settings), first, 1)
    write_ranker(memory, ranker, None, read_held_out(memory), report, second)
    build(BuildSettings(run=run, store=folder / "store", index="flat", activate=True))


@pytest.fixture(scope="module")
def model(crossed: CrossedRun) -> Model:
    return open_model(crossed.store)


def answers(model: Model, queries: list[str], **options: Any) -> list[dict[str, Any]]:
    return [answer.to_dict() for answer in model.answer(queries, **options)]


def ranking(answer: dict[str, Any]) -> list[tuple[str, float]]:
    """The labels and their probabilities, up to the rounding of a batch."""
    return [(label["uid"], round(label["probability"], 3)) for label in answer["labels"]]


def test_answers_say_whether_the_cross_encoder_read_the_query(model: Model) -> None:
    plain = answers(model, QUERIES, top_k=12)
    assert all("reranked" not in answer for answer in plain)
    read = answers(model, QUERIES, top_k=12, rerank=True)
    assert all(answer["reranked"] is True for answer in read)
    assert read != plain
    for one, other in zip(plain, read, strict=True):
        votes = ({label["uid"]: label["score"] for label in each["labels"]} for each in (one, other))
        assert next(votes) == pytest.approx(next(votes))
        chances = [label["probability"] for label in other["labels"]]
        assert chances == sorted(chances, reverse=True)
    assert [ranking(answers(model, [query], top_k=12, rerank=True)[0]) for query in QUERIES] == [*map(ranking, read)]


def test_a_query_whose_deadline_would_pass_is_answered_by_the_first_ranker(model: Model) -> None:
    options = checked_options(model.manifest, rerank=True)
    requests = [([query], options) for query in QUERIES[:3]]
    now = time.monotonic()
    late = model.predictor.predict_together(requests, deadlines=[now - 1, now + 600, now - 1])
    (first,), (second,), (third,) = (each.answers for each in late)
    assert [first.left_out, second.left_out, third.left_out] == ["deadline", None, "deadline"]
    assert ranking(first.to_dict()) == ranking(answers(model, QUERIES[:1])[0])
    assert ranking(second.to_dict()) == ranking(answers(model, QUERIES[1:2], rerank=True)[0])
    assert not first.may_be_kept
    assert second.may_be_kept


def test_other_orders_are_those_of_the_reranked_probabilities(model: Model) -> None:
    plain, macro = answers(model, QUERIES, top_k=12, order="macro", tail_weight=0.3), []
    for query in QUERIES:
        macro += answers(model, [query], top_k=12, order="macro", tail_weight=0.3, rerank=True)
    read = answers(model, QUERIES, top_k=12, order="probability", rerank=True)
    assert all(answer["reranked"] is True for answer in macro)
    assert [*map(ranking, macro)] != [*map(ranking, plain)]
    assert [sorted(ranking(answer)) for answer in macro] == [sorted(ranking(answer)) for answer in read]


@pytest.mark.parametrize(
    ("usual", "chosen", "expected"),
    [
        ("score", {"rerank": True}, ("probability", True)),
        ("macro", {"rerank": True}, ("macro", True)),
        ("score", {}, ("score", False)),
        ("score", {"assign": True}, ("probability", True)),
        ("score", {"assign": True, "rerank": False}, ("probability", False)),
        ("probability", {"lambda_": 0.1}, ("score", False)),
        ("probability", {}, ("probability", True)),
    ],
)
def test_rerank_orders_by_probability_whatever_the_default_order_is(
    model: Model, usual: str, chosen: dict[str, Any], expected: tuple[str, bool]
) -> None:
    defaults = model.manifest.defaults.model_copy(update={"order": usual, "rerank": True, "tail_weight": 0.1})
    options = checked_options(model.manifest.model_copy(update={"defaults": defaults}), **chosen)
    assert (options.order, options.rerank) == expected


def test_queries_are_read_again_after_one_that_took_very_long(crossed: CrossedRun) -> None:
    folder = crossed.run / "memory" / "ranker"
    session = open_session(folder / CROSS_ENCODER, "int8", 1, "cpu")
    waits = [0, 2, *[0] * 1_000]

    def run(*arguments: Any) -> Any:
        time.sleep(waits.pop(0))
        return session.run(*arguments)

    slow: Any = SimpleNamespace(run=run, get_inputs=session.get_inputs, get_outputs=session.get_outputs)
    scorer = CrossEncoder(folder, PairTokenizer(open_tokenizer(folder / CROSS_TOKENIZER, 64), (64, 24)), slow)

    def read(seconds: float) -> bool:
        (scored,) = scorer.score([Pair("1a2", ["A", "B"], time.monotonic() + seconds)])
        return not isinstance(scored, str)

    assert read(60)
    assert read(60)
    assert not read(0.3)
    until(lambda: read(0.3))


def test_the_service_says_what_it_left_out_and_keeps_only_complete_answers(crossed: CrossedRun) -> None:
    with serving(crossed.store, "--max-seconds", "30") as server:
        plain = server.ask(QUERIES[0])
        assert "reranked" not in plain.json()
        read = server.ask(QUERIES[0], rerank=True)
        assert read.json()["reranked"] is True
        assert "rerank;dur=" in read.headers["server-timing"]
        again = server.ask(QUERIES[0], rerank=True)
        assert again.headers["server-timing"].startswith("cache;")
        assert again.content == read.content
        late = server.ask(QUERIES[1], rerank=True, timeout_ms=1)
        assert late.status_code == 504 or late.json()["left_out"] == "deadline"
        later = server.ask(QUERIES[1], rerank=True)
        assert later.json()["reranked"] is True
        batch = server.client.post("/predict/batch", json={"queries": QUERIES, "rerank": True}).json()["results"]
        assert all(answer["reranked"] for answer in batch)
        assert 'recollect_reranked_total{outcome="read"}' in server.client.get("/metrics").text


def test_an_explanation_has_the_term_of_the_cross_encoder(model: Model) -> None:
    found = answers(model, QUERIES, top_k=12, rerank=True, explain=True)
    labels = [label for answer in found for label in answer["labels"]]
    values = [term["value"] for label in labels for term in label["ranked_by"] if term["feature"] == "cross_encoder"]
    assert any(value is not None for value in values)
    (plain,) = [answer["labels"] for answer in answers(model, QUERIES[:1], top_k=12, explain=True)]
    assert all(term["feature"] != "cross_encoder" for label in plain for term in label["ranked_by"])


def test_a_vector_is_answered_without_the_cross_encoder(crossed: CrossedRun, model: Model, tmp_path: Path) -> None:
    vector = model.predictor.encode(QUERIES[:1])
    with pytest.raises(QueryError, match="rerank: version .* gives probabilities to texts only"):
        model.answer(vectors=vector, rerank=True)
    build(BuildSettings(run=crossed.run, store=tmp_path, index="flat", rerank=True, activate=True))
    by_default = open_model(tmp_path)
    assert by_default.answer(QUERIES[:1])[0].reranked
    (answer,) = by_default.answer(vectors=vector)
    assert (answer.reranked, answer.left_out) == (False, "text")
    assert answer.may_be_kept
    assert by_default.answer(QUERIES[:1], rerank=False)[0].reranked is None
    assert by_default.answer(QUERIES[:1], order="score")[0].reranked is None


def test_live_labels_are_read_and_a_compaction_keeps_the_cross_encoder(crossed: CrossedRun, tmp_path: Path) -> None:
    store = Path(shutil.copytree(crossed.store, tmp_path / "store"))
    run = Path(shutil.copytree(crossed.run, tmp_path / "run"))
    model = open_model(store, live="write")
    model.add(instances=[{"uid": "new", "text": "quartz next to kelp", "labels": ["quartz"]}], create_labels=True)
    assert model.answer(["quartz next to kelp"], rerank=True)[0].reranked
    assert recollect.main(["compact", str(store), "--run", str(run), "--index", "flat", "--activate"]) == 0
    compacted = open_model(store)
    assert compacted.manifest.counts.labels == 13
    assert compacted.answer(["quartz next to kelp"], rerank=True)[0].reranked


def test_a_query_cannot_ask_for_what_is_missing(model: Model, built: Any) -> None:
    with pytest.raises(QueryError, match="rerank: needs the order probability"):
        model.predict("a", rerank=True, order="score")
    with pytest.raises(QueryError, match="rerank: version .* has no cross-encoder; leave out rerank"):
        open_model(built.store).predict("a", rerank=True)


def test_the_order_of_the_candidates_does_not_matter(crossed: CrossedRun) -> None:
    bundle = open_bundle(next((crossed.store / "bundles").iterdir()))
    scorer = CrossRanker.open(bundle, threads=1).scorer
    names, never = ["A", "B", "CD", "E"], float("inf")
    forward, backward = scorer.score([Pair("1a2", names, never), Pair("1a2", names[::-1], never)])
    (alone,) = scorer.score([Pair("1a2", ["CD"], never)])
    assert np.allclose(forward, backward[::-1], atol=1e-3)
    assert np.allclose(alone, forward[2], atol=0.1)  # int8: one scale for all tokens of a sequence


@pytest.mark.parametrize("name", sorted(CROSS_FILES))
def test_a_damaged_file_is_refused(crossed: CrossedRun, tmp_path: Path, name: str) -> None:
    store = Path(shutil.copytree(crossed.store, tmp_path / "store"))
    (path,) = store.glob(f"bundles/*/{name}")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(BundleError, match=name):
        open_model(store)
    path.unlink()
    with pytest.raises(BundleError, match=name):
        open_model(store)


def test_a_ranker_whose_features_have_no_files_is_refused(crossed: CrossedRun, tmp_path: Path) -> None:
    store = Path(shutil.copytree(crossed.store, tmp_path / "store"))
    (manifest,) = store.glob("bundles/*/manifest.json")
    content = json.loads(manifest.read_text())
    for name in STEM_FILES:
        del content["files"][name]
        (manifest.parent / name).unlink()
    manifest.write_text(json.dumps(content))
    with pytest.raises(BundleError, match="expected files for the features stem_share, .* found none"):
        open_model(store)


def test_a_damaged_cross_encoder_of_a_run_is_refused(crossed: CrossedRun, tmp_path: Path) -> None:
    run = Path(shutil.copytree(crossed.run, tmp_path / "run"))
    (run / "memory" / "ranker" / CROSS_RANKER).write_text("{}")
    with pytest.raises(BundleError, match=rf"{CROSS_RANKER}: expected a ranker of format_version 1, found"):
        build(BuildSettings(run=run, store=tmp_path / "store", index="flat"))
    assert not list((tmp_path / "store").glob("bundles/*"))


def test_rank_reports_the_gain_of_a_cross_encoder_and_keeps_it_only_if_it_helps(
    crossed: CrossedRun, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(crossed.run, tmp_path / "run"))
    result = recollect.rank(run, threads=1, queries=300, cross_encoder=True, minutes=0.01)
    cross = result["cross_encoder"]
    assert 0 < cross["texts"] <= 300
    assert [gain["name"] for gain in cross["gains"]] == [gain["name"] for gain in result["gains"]]
    files = {path.name for path in (run / "memory" / "ranker").iterdir()}
    assert (files >= CROSS_FILES) == cross["kept"]
    if not cross["kept"]:
        with pytest.raises(BuildError, match="--rerank: expected a run with a cross-encoder, found none"):
            build(BuildSettings(run=run, store=tmp_path / "store", index="flat", rerank=True))


def test_texts_and_an_encoder_must_be_left_for_the_cross_encoder(
    crossed: CrossedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(crossed.run, tmp_path / "run"))
    with pytest.raises(NothingToRank, match="at least 100 texts .* no examples of the ranker, found 0; .* --queries"):
        recollect.rank(run, threads=1, queries=600, cross_encoder=True, minutes=0.01)
    other = write_tiny_encoder(tmp_path / "encoder", "distilbert")
    assert "fit:" in capsys.readouterr().err
    with pytest.raises(BuildError, match="expected a BERT encoder of at least 83 positions to start from"):
        recollect.rank(run, threads=1, queries=300, cross_encoder=True, cross_encoder_base=str(other), minutes=0.01)
    assert "fit:" not in capsys.readouterr().err  # nothing was fitted in vain
    with pytest.raises(recollect.ERRORS, match="--minutes: expected --cross-encoder, found none"):
        recollect.rank(run, minutes=1)
