"""Flags without an effect are refused: each flag of some verbs, in each mode of the verb.

A table has the modes in which a flag means nothing. It must have each flag of its verb.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import recollect
from recollect.core.errors import RecollectError
from recollect.core.settings import ENV_PREFIX, Settings, as_flag
from recollect.index_builder.settings import BuildSettings, CompareSettings, EvaluateSettings, RankSettings
from recollect.trainer.settings import DatasetSettings, TuneSettings
from recollect.trainer.train_settings import TrainSettings

Flags = dict[str, Any]
# The modes in which a flag means nothing, and a value of the flag.
Row = tuple[set[str], Any]


class Walk(NamedTuple):
    """The flags of a verb.

    Attributes:
        settings: The class that declares them.
        required: Flags of every call.
        modes: The further flags of each mode.
        table: A row for each flag.
    """

    settings: type[Settings]
    required: Flags
    modes: dict[str, Flags]
    table: dict[str, Row]

    def refusal(self, mode: str, name: str) -> str | None:
        """The message for a flag in a mode; None if it is accepted."""
        given = self.required | self.modes[mode] | {name.rstrip("_"): self.table[name][1]}
        try:
            self.settings(**given)
        except RecollectError as error:
            return str(error)
        return None


TRAIN_MODES: dict[str, Flags] = {
    "rae": {},
    **{name: {"method": name} for name in ("dexml", "softtopk", "prime", "ngame", "unidec", "supcon")},
    **{name: {"method": name} for name in ("infonce", "bce", "ova")},
    "projected supcon": {"method": "supcon", "projection": 16},
    "all positives": {"positives": 0},
    "rare positives": {"positive_sampling": "propensity"},
    "no negatives": {"hard_negatives": 0},
    "mining by steps": {"mine_every": 9},
    "mined ova": {"method": "ova", "hard_negatives": 5},
    "prime, all labels": {"method": "prime", "hard_negatives": "all"},
    "prime, no free vectors": {"method": "prime", "prototype": ["text", "centroid"]},
    "prime, random batches": {"method": "prime", "clusters": 0},
    "full": {"train": "full"},
    "static": {"encoder": "static"},
    "nothing held out": {"validation_fraction": 0},
    "untrained": {"epochs": 0},
    "untrained, distilled": {"epochs": 0, "query_encoder": "static"},
    "untrained, ranked": {"epochs": 0, "rank": "yes"},
    "best": {"best": True},
    "preset": {"preset": "rae/lf-amazontitles-131k"},
}
EVERY = {*TRAIN_MODES}
UNTRAINED = {"untrained", "untrained, distilled", "untrained, ranked", "best"}
PRIME = {mode for mode in TRAIN_MODES if mode.startswith("prime")}
PAL, TRIPLETS = {"unidec", "supcon", "projected supcon"}, PRIME | {"ngame"}
HEADS = (TRIPLETS | PAL | {"ova", "mined ova"}) - {"supcon"}
CLUSTERED = (TRIPLETS | PAL) - {"prime, random batches"}
WITH_METHOD = {mode for mode, flags in TRAIN_MODES.items() if "method" in flags}
NO_SOFTMAX, ALL_PULLED = TRIPLETS, {"bce", "ova"}
NO_DRAW = {"dexml", "softtopk", *ALL_PULLED, "mined ova", "all positives"}
RARE = (PRIME | {"rare positives", "untrained, ranked", "best"}) - NO_DRAW
NO_MINING = {"dexml", "softtopk", "infonce", "bce", "ova", "no negatives", *TRIPLETS}
NOTHING_HELD_OUT = {"nothing held out", "preset"}
WHOLE = {"full", "static", "preset"}

TRAIN = Walk(
    TrainSettings,
    {"dataset": "data", "out": "run"},
    TRAIN_MODES,
    {
        "dataset": (set(), "other"),
        "out": (set(), "other"),
        "format": (set(), "native"),
        "text_fields": (set(), ["title"]),
        "empty_texts": (set(), "drop"),
        "label_language": (set(), "en"),
        "unknown_labels": (set(), "drop"),
        "text_columns": (set(), ["title"]),
        **dict.fromkeys(("label_column", "label_separator", "id_column"), (set[str](), "x")),
        "labels": (set(), "labels.csv"),
        "test_fraction": (set(), 0.1),
        "encoder": (set(), "bert-base-uncased"),
        "static_from": (EVERY - {"static"}, "bert-base-uncased"),
        "pooling": (set(), "mean"),
        "query_prompt": ({"static"}, "query: "),
        "label_prompt": ({"static"}, "label: "),
        "max_length": (set(), 64),
        "label_max_length": (set(), 16),
        "device": (set(), "cpu"),
        "key_dtype": (set(), "float16"),
        "epochs": ({"best"}, 2),
        "query_encoder": ({"static", "best"}, "static"),
        "rank": ({"best"}, "yes"),
        "vectors": (WHOLE | {"best"}, "zero"),
        "resume": ({"best"}, True),
        "overwrite": (set(), True),
        "preset": (WITH_METHOD | {"best"}, "rae/lf-amazontitles-131k"),
        "scale": (EVERY - {"preset"}, 0.5),
        "best": (EVERY - {"rae"}, True),
        "minutes": (EVERY - {"best"}, 5),
        "normalise": (EVERY - WHOLE - {"untrained", "untrained, ranked"}, False),
        "seed": ({"untrained"}, 3),
        "validation_fraction": ({"untrained", "untrained, ranked"}, 0.1),
        "validate_lambda": (UNTRAINED | NOTHING_HELD_OUT, [0.5]),
        "tune": (UNTRAINED | NOTHING_HELD_OUT, "yes"),
        "train": (UNTRAINED, "full"),
        "precision": (set(), "bf16"),
        "label_inputs": (UNTRAINED | WHOLE, "text"),
        "lora": (EVERY - {"full", "preset"}, 4),
        "method": (UNTRAINED | {"preset", "mining by steps"}, "infonce"),
        "head_learning_rate": (EVERY - HEADS, 0.1),
        "table_learning_rate": (EVERY - HEADS | {"prime, no free vectors", "projected supcon"}, 0.1),
        "temperature": (UNTRAINED | NO_SOFTMAX, 0.1),
        "positives": (UNTRAINED | ALL_PULLED, 2),
        "positive_sampling": (UNTRAINED | NO_DRAW, "propensity"),
        "propensity": (EVERY - RARE, (0.6, 2.6)),
        "hard_negatives": (UNTRAINED, 3),
        "mine_from": (UNTRAINED | NO_MINING, 1),
        "mine_every": (UNTRAINED | NO_MINING, 9),
        "mine_every_epochs": (UNTRAINED | NO_MINING | {"mining by steps", "preset"}, 2),
        "mine_top": (UNTRAINED | NO_MINING, 40),
        "clusters": (UNTRAINED, 40),
        "cluster_from": (EVERY - CLUSTERED, 1),
        "cluster_every": (EVERY - CLUSTERED, 2),
        "cluster_double_at": (EVERY - CLUSTERED, [2]),
        **dict.fromkeys(("batch_size", "max_steps", "micro_batch", "validate_every"), (UNTRAINED, 7)),
        **dict.fromkeys(("learning_rate", "max_seconds", "warmup", "weight_decay", "clip_norm"), (UNTRAINED, 0.3)),
        **dict.fromkeys(("embedding_dropout", "save_minutes"), (UNTRAINED, 0.3)),
        "prototype": (EVERY - PRIME, ["text", "free"]),
        "bank": (EVERY - PRIME | {"prime, no free vectors"}, 4),
        "margin": (EVERY - TRIPLETS, (0.1, 0.2)),
        "triplet_negatives": (EVERY - TRIPLETS, 10),
        "text_loss": (EVERY - PRIME, False),
        "regulariser_weight": (EVERY - PRIME, 0.2),
        "symmetric": (EVERY - PRIME - PAL, False),
        "classifier_norm": (EVERY - {"unidec"}, False),
        "projection": (EVERY - PAL, 16),
        "softtopk_k": (EVERY - {"softtopk"}, 3),
        "softtopk_alpha": (EVERY - {"softtopk"}, 3.0),
        "classifier_keys": (EVERY - {"ova", "mined ova", "ngame"}, "joined"),
    },
)

TUNE = Walk(
    TuneSettings,
    {"run": "run"},
    {"nDCG": {}, "PSP": {"metric": "PSP@5"}, "ranked": {"rank": "auto"}},
    {
        "propensity": ({"nDCG"}, (0.6, 2.6)),
        "run": (set(), "other"),
        "metric": (set(), "P@1"),
        "lambda_": (set(), [0.5]),
        "temperature": (set(), [0.1]),
        "top_b": (set(), [9]),
        "label_key_alpha": (set(), [0.5]),
        "rank": (set(), "yes"),
        "device": (set(), "auto"),
        "json_": (set(), True),
        **dict.fromkeys(("queries", "seed"), (set[str](), 9)),
    },
)

RANK = Walk(
    RankSettings,
    {"run": "run"},
    {"alone": {}, "cross": {"cross_encoder": True}, "server": {"reranker": "http://localhost/rerank"}},
    {
        "run": (set(), "other"),
        "cross_encoder": ({"server"}, True),
        "minutes": ({"alone", "server"}, 9),
        "cross_encoder_base": ({"alone", "server"}, "minilm"),
        "cross_encoder_candidates": ({"alone"}, 9),
        "reranker": ({"cross"}, "http://localhost/v1/rerank#model"),
        "reranker_token": ({"alone", "cross"}, "token"),
        "reranker_ms": ({"alone", "cross"}, 9),
        "metric": (set(), "P@1"),
        "queries": (set(), 900),
        "lexical": (set(), "off"),
        "classifier": (set(), "off"),
        "propensity": (set(), (0.6, 2.6)),
        "json_": (set(), True),
        **dict.fromkeys(("seed", "threads"), (set[str](), 9)),
    },
)

LOCAL_BUILDS: dict[str, Flags] = {
    "auto": {},
    "flat": {"index": "flat"},
    "hnsw": {"index": "hnsw"},
    "factory": {"index": "HNSW32,Flat"},
    "gate": {"gate_dataset": "test"},
    "milvus": {"engine": "milvus"},
}
BUILD_MODES = LOCAL_BUILDS | {"url": {"store": "s3://bucket/store"}}
NO_GRAPH = {*BUILD_MODES} - {"hnsw", "factory"}
NO_MILVUS = {*BUILD_MODES} - {"milvus", "gate"}
BUILD = Walk(
    BuildSettings,
    {"run": "run", "store": "store"},
    BUILD_MODES,
    {
        "engine_uri": (NO_MILVUS, "http://localhost:19530"),
        "engine_token": (NO_MILVUS, "user:password"),
        "engine_ca": (NO_MILVUS, "ca.pem"),
        "engine_seconds": (NO_MILVUS, 9),
        "encoder_url": (set(), "http://localhost/v1"),
        "encoder_token": (set(), "token"),
        "encoder_seconds": (set(), 9),
        "reranker": (set(), "http://localhost/rerank"),
        "reranker_token": (set(), "token"),
        "reranker_ms": (set(), 9),
        "hnsw_m": (NO_GRAPH | {"factory"}, 9),
        "hnsw_ef_construction": (NO_GRAPH, 9),
        "hnsw_ef_search": (NO_GRAPH, 9),
        "max_drop": ({*BUILD_MODES} - {"gate"}, 1),
        "bundle_cache": ({*LOCAL_BUILDS}, "cache"),
        "memory_budget": ({"milvus"}, "2GB"),
        "run": (set(), "other"),
        "store": (set(), "other"),
        "index": (set(), "ivf"),
        "recall_target": (set(), 0.9),
        "sign": (set(), "key.pem"),
        "gate_dataset": (set(), "other"),
        "device": (set(), "auto"),
        "precision": (set(), "int8"),
        "lexical": (set(), "off"),
        "rank": (set(), "off"),
        "engine": (set(), "milvus"),
        **dict.fromkeys(("force", "activate", "rerank"), (set[str](), True)),
        **dict.fromkeys(("latency_budget_ms", "threads", "memory_sequence"), (set[str](), 9)),
    },
)

DATASET: dict[str, Row] = {name: TRAIN.table[name] for name in DatasetSettings.model_fields}
EVALUATE = Walk(
    EvaluateSettings,
    {"dataset": "data", "store": "store"},
    {
        "table": {},
        "json": {"json": True},
        "csv": {"csv": True},
        "latex": {"latex": True},
        "url": {"store": "s3://bucket/store"},
        "signed": {"verify_key": "key.pem"},
    },
    DATASET
    | {
        "bundle_cache": ({"table", "json", "csv", "latex"}, "cache"),
        "intervals": ({"json"}, True),
        "deciles": ({"json", "csv", "latex"}, True),
        "wide": ({"json", "csv"}, True),
        "csv": ({"json", "latex"}, True),
        "latex": ({"json", "csv"}, True),
        "store": (set(), "other"),
        "verify_key": (set(), "key.pem"),
        "version": (set(), "1"),
        "lambda_": (set(), [0.5]),
        "temperature": (set(), [0.1]),
        "top_b": (set(), [9]),
        "word_weight": (set(), [0.5]),
        "propensity": (set(), (0.6, 2.6)),
        "compare": ({"csv", "latex"}, "1"),
        "by": ({"csv", "latex"}, "groups"),
        "report": (set(), "report"),
        "device": (set(), "auto"),
        "json_": ({"csv", "latex"}, True),
        "separate_memories": (set(), True),
        **dict.fromkeys(("limit", "threads"), (set[str](), 9)),
    },
)

COMPARE = Walk(
    CompareSettings,
    {"dataset": "data", "out": "table"},
    {"adapter": {}, "static": {"encoder": "static"}},
    DATASET
    | {
        "static_from": ({"adapter"}, "bert-base-uncased"),
        "query_prompt": ({"static"}, "query: "),
        "label_prompt": ({"static"}, "label: "),
        "out": (set(), "other"),
        "encoder": (set(), "bert-base-uncased"),
        "pooling": (set(), "mean"),
        "train": (set(), "full"),
        "learning_rate": (set(), 0.1),
        "propensity": (set(), (0.6, 2.6)),
        "device": (set(), "cpu"),
        "precision": (set(), "bf16"),
        "methods": (set(), ["dexml"]),
        "variants": (set(), "some.toml"),
        "seeds": (set(), [1, 2]),
        "metric": (set(), "P@1"),
        "json_": (set(), True),
        **dict.fromkeys(("max_length", "label_max_length", "epochs", "max_steps"), (set[str](), 9)),
        **dict.fromkeys(("max_seconds", "batch_size", "limit"), (set[str](), 9)),
    },
)

WALKS = {"train": TRAIN, "tune": TUNE, "rank": RANK, "build": BUILD, "evaluate": EVALUATE, "compare": COMPARE}
# `--from` needs a run: tests/trainer/test_warm_start.py.
NEED_FILES = {"from_"}


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("verb", WALKS)
def test_table_has_each_flag_of_its_verb(verb: str) -> None:
    walk = WALKS[verb]
    assert {*walk.table} == {*walk.settings.model_fields} - NEED_FILES


@pytest.mark.parametrize(("verb", "mode"), [(verb, mode) for verb, walk in WALKS.items() for mode in walk.modes])
def test_flag_is_refused_in_the_modes_in_which_it_means_nothing_and_in_no_other(verb: str, mode: str) -> None:
    walk = WALKS[verb]
    of_mode = {name for name in walk.table if name.rstrip("_") in walk.modes[mode]}
    refusals = {name: walk.refusal(mode, name) for name in walk.table if name not in of_mode}
    refused = {name: message for name, message in refusals.items() if message is not None}
    nothing = {name for name, (modes, _) in walk.table.items() if mode in modes} - of_mode
    assert {*refused} == nothing, {name: refused.get(name) for name in {*refused} ^ nothing}
    for name, message in refused.items():
        flag = "--no-normalise" if name == "normalise" and mode != "best" else as_flag(name)
        assert flag in message
        assert "expected" in message
        assert "found" in message or "omit" in message


def test_environment_variable_without_an_effect_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is for several verbs."""
    monkeypatch.setenv("RECOLLECT_PROPENSITY", ".6,2.6")
    monkeypatch.setenv("RECOLLECT_BATCH_SIZE", "7")
    assert TrainSettings(dataset=Path("data"), out=Path("run"), epochs=0).propensity == (0.6, 2.6)
    with pytest.raises(RecollectError, match="--seed: expected a training"):
        TrainSettings(dataset=Path("data"), out=Path("run"), epochs=0, seed=3)


def test_value_of_a_preset_without_an_effect_is_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    settings = TrainSettings(
        dataset=Path("data"), out=Path("run"), preset="rae/lf-amazontitles-131k", method="rae", hard_negatives=0
    )
    assert (settings.hard_negatives, settings.mine_top) == (0, 50)
    given = [
        "train",
        "data",
        "--out",
        "run",
        "--preset",
        "rae/lf-amazontitles-131k",
        "--epochs",
        "0",
        "--mine-top",
        "9",
    ]
    assert recollect.main(given) == 2
    assert capsys.readouterr().err == (
        "recollect train: --mine-top: expected a training, found --epochs 0; omit the flag\n"
    )
