"""The Python API: `recollect.open`, `train`, `tune`, `build`, `evaluate`, and `Model`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.service.errors import BundleError, KeyFileError, QueryError, SettingsError, StoreError
from recollect.service.model import Model
from recollect.service.options import AnswerOptions
from tests.conftest import write_topics
from tests.index_builder.conftest import write_tiny_encoder

REPOSITORY = Path(__file__).parents[1]
QUERY = "Who must pay tax on the sale of a house"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RECOLLECT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def model(built: Any) -> Model:
    return recollect.open(built.store)


@pytest.fixture
def usage_error() -> Callable[..., str]:
    """A function that calls another function, which must raise `UsageError`, and returns the message."""

    def call(function: Callable[..., object], *arguments: object, **keywords: object) -> str:
        with pytest.raises(recollect.UsageError) as caught:
            function(*arguments, **keywords)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return call


def test_import_recollect_loads_no_heavy_package() -> None:
    code = "import sys, recollect; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    heavy = {"numpy", "torch", "fastapi", "pydantic", "faiss", "onnxruntime", "recollect.trainer"}
    assert not heavy & set(done.stdout.split())


def test_every_name_in_all_exists_and_an_unknown_name_raises_attribute_error() -> None:
    assert all(hasattr(recollect, name) for name in recollect.__all__)
    with pytest.raises(AttributeError, match="module 'recollect' has no attribute 'opne'"):
        _ = recollect.opne  # type: ignore[attr-defined]


# ---- Model ----


def test_predict_returns_labels_with_uid_text_and_score_in_descending_order(model: Model) -> None:
    labels = model.predict(QUERY, top_k=5)
    assert len(labels) == 5
    assert (labels[0].uid, labels[0].text, labels[0].because) == ("Taxation", "Taxation", None)
    scores = [label.score for label in labels]
    assert scores == sorted(scores, reverse=True)


def test_predict_with_several_texts_returns_a_list_of_labels_for_each_text(model: Model) -> None:
    both = model.predict([QUERY, "How long should bread be in the oven"], lambda_=0.2, explain=True)
    assert [labels[0].uid for labels in both] == ["Taxation", "Cooking"]
    for labels in both:
        for label in labels:
            assert label.because is not None
            assert sum(reason.share for reason in label.because) == pytest.approx(label.score, abs=1e-6)
    assert model.predict([]) == []


def test_model_predict_and_recollect_predict_give_the_same_answer(
    model: Model, built: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--lambda", "0.3", "--temperature", "0.1", "--top-b", "7", "--top-k", "4"]
    assert recollect.main(["predict", QUERY, "--store", str(built.store), "--json", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    labels = model.predict(QUERY, lambda_=0.3, temperature=0.1, top_b=7, top_k=4)
    assert [(label.uid, label.score) for label in labels] == [
        (each["uid"], each["score"]) for each in printed["labels"]
    ]
    assert printed["version"] == model.version


def test_allow_deny_and_threshold_limit_the_returned_labels(model: Model) -> None:
    assert [label.uid for label in model.predict(QUERY, allow=["Law", "Cooking"], top_k=1)] == ["Law"]
    assert "Taxation" not in {label.uid for label in model.predict(QUERY, deny=("Taxation",))}
    assert model.predict(QUERY, threshold=1.0) == []


def test_answer_states_whether_the_text_was_truncated_and_the_labels_are_exhausted(model: Model) -> None:
    short, long = model.answer(["tax", "tax " * 500], allow=["Law"])
    assert (short.truncated, long.truncated) == (False, True)
    assert short.exhausted


def test_keywords_of_predict_are_the_answer_options(model: Model) -> None:
    from recollect.service.model import ChosenOptions

    assert set(ChosenOptions.__annotations__) == set(AnswerOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [
        ("", {}, "the query is empty; send some words"),
        ([QUERY, " \t"], {}, "the query is empty; send some words"),
        ("half \ud800", {}, "the query contains half of a surrogate pair"),
        ([QUERY, 5], {}, "the query must be a text, found 5"),
        (
            QUERY,
            {"topk": 5},
            "topk: unknown option; known: allow, assign, deny, explain, lambda_, min_probability, order, temperature,",
        ),
        (QUERY, {"lambda_": 1.5}, "lambda_: expected less than or equal to 1; found 1.5"),
        (QUERY, {"lambda_": float("nan")}, "lambda_: expected a finite number; found nan"),
        (QUERY, {"temperature": 0}, "temperature: expected greater than or equal to 0.0001; found 0"),
        (QUERY, {"top_k": 1001}, "top_k: expected less than or equal to 1000; found 1001"),
        (QUERY, {"top_k": "5"}, "top_k: expected a valid integer; found '5'"),
        (QUERY, {"allow": "Law"}, "allow: expected "),
        (QUERY, {"explain": None}, "explain: expected a valid boolean; found None"),
    ],
)
def test_wrong_queries_and_options_raise_query_error_with_a_message_of_one_line(
    model: Model, query: Any, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(QueryError) as caught:
        model.predict(query, **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_threads_share_a_model(model: Model) -> None:
    queries = [QUERY, "How long should bread be in the oven", "Who scored the penalty in the cup final"] * 8
    alone = [model.predict(query)[0].uid for query in queries]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: model.predict(query)[0].uid, queries))
    assert together == alone


def test_model_states_its_version_and_its_counts(model: Model, built: Any) -> None:
    assert model.version == built.version
    assert (model.manifest.counts.labels, model.manifest.counts.instances) == (8, 28)
    assert recollect.open(str(built.store), version=built.version).version == built.version


def test_open_reads_the_environment_variables_of_the_flags(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_VERIFY_KEY", "/none.pem")
    with pytest.raises(KeyFileError, match=r"/none\.pem"):
        recollect.open(built.store)


@pytest.mark.parametrize(
    ("keywords", "error", "expected"),
    [
        ({"store": "/none"}, StoreError, "/none: expected a bundle store, found none; run `recollect build`"),
        ({"version": "v9"}, StoreError, "found no 'v9'"),
        ({"verify_key": "/none.pem"}, KeyFileError, "/none.pem"),
        ({"threads": -1}, SettingsError, "threads: expected 0 or more, found -1"),
        ({"device": "gpu"}, SettingsError, "device: expected one of auto, cpu, cuda; found 'gpu'"),
    ],
)
def test_open_refuses_wrong_arguments(
    built: Any, keywords: dict[str, Any], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match="^") as caught:
        recollect.open(**({"store": built.store} | keywords))
    assert expected in str(caught.value)


def test_open_with_a_public_key_refuses_an_unsigned_bundle(built: Any, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PrivateKey.generate().public_key()
    (tmp_path / "public.pem").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(BundleError, match="sig"):
        recollect.open(built.store, verify_key=tmp_path / "public.pem")


# ---- train, tune, build, evaluate ----


def test_train_tune_build_and_evaluate_return_results_and_print_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_topics(tmp_path / "dataset")
    write_tiny_encoder(tmp_path / "encoder", "bert")

    run = recollect.train(
        str(dataset), out=str(tmp_path / "run"), method="rae", encoder=tmp_path / "encoder", max_length=64, epochs=2
    )
    assert run == tmp_path / "run"
    tuned = recollect.tune(run, lambda_=[0, 0.5], temperature=0.05, top_b=[12], label_key_alpha=0)
    assert (tuned["temperature"], tuned["top_b"], tuned["label_key_alpha"]) in [(0.05, 12, 0), (0.04, 200, 0)]
    assert set(tuned) == {"lambda", "temperature", "top_b", "label_key_alpha", "score"}

    store = tmp_path / "store"
    version = recollect.build(run, store=store, index="flat", activate=True)
    assert (store / "CURRENT").read_text().strip() == version
    results = recollect.evaluate(dataset, store=store, lambda_=0.5)
    capsys.readouterr()
    arguments = ["evaluate", str(dataset), "--store", str(store), "--lambda", "0.5", "--json"]
    assert recollect.main(arguments) == 0
    assert results == json.loads(capsys.readouterr().out)
    assert (results["version"], results["queries"], results["rows"][0]["lambda"]) == (version, 7, 0.5)

    recollect.train(dataset, out=run, method="rae", encoder=tmp_path / "encoder", max_length=64, epochs=2)
    recollect.tune(run)
    recollect.build(run, store=store, index="flat")
    recollect.evaluate(dataset, store=store)
    assert capsys.readouterr().out == ""


def test_keyword_that_is_not_given_comes_from_its_environment_variable(
    usage_error: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_EPOCHS", "-1")
    assert "recollect.train: epochs: expected greater" in usage_error(recollect.train, "data", out="run")


@pytest.mark.parametrize(
    ("name", "keywords", "expected"),
    [
        ("train", {"out": "r", "methud": "rae"}, "recollect.train: unknown keyword methud; known: bank, batch_size,"),
        ("train", {"out": "r", "epochs": -1}, "recollect.train: epochs: expected greater than or equal to 0; found -1"),
        ("train", {"out": "r", "method": "bert"}, "recollect.train: method: expected 'rae', "),
        ("tune", {"lambda": [2]}, "recollect.tune: unknown keyword lambda; known: device, label_key_alpha, lambda_,"),
        ("tune", {"lambda_": [2]}, "recollect.tune: lambda_: expected less than or equal to 1; found 2"),
        (
            "build",
            {"store": "s", "recall_target": 2},
            "recollect.build: recall_target: expected less than or equal to 1",
        ),
        ("evaluate", {"store": "s", "json_": True}, "recollect.evaluate: unknown keyword json_; known: bundle_cache,"),
    ],
)
def test_wrong_keywords_raise_usage_error_with_a_message_of_one_line(
    usage_error: Callable[..., str], name: str, keywords: dict[str, Any], expected: str
) -> None:
    assert usage_error(getattr(recollect, name), "x", **keywords).startswith(expected)


def test_error_for_a_missing_package_names_the_extra_to_install(
    usage_error: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "recollect.trainer.run", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # importing torch then fails as if it were not installed
    message = usage_error(recollect.train, "data", out="run", epochs=0)
    assert message == "needs torch; pip install 'recollect-xmc[train]'"


@pytest.mark.parametrize(
    "call",
    [
        lambda: recollect.open("/none"),
        lambda: recollect.train("/none", out="/none/run"),
        lambda: recollect.tune("/none"),
        lambda: recollect.build("/none", store="/none"),
        lambda: recollect.evaluate("/none", store="/none"),
        lambda: recollect.evaluate("/none", store="/none", limit=-1),
    ],
)
def test_every_public_function_raises_an_error_of_recollect_errors(call: Callable[[], object]) -> None:
    with pytest.raises(recollect.ERRORS):
        call()
