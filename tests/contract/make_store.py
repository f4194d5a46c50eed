"""Makes the data of the contract tests again.

    python -m tests.contract.make_store             # data/store, a store with one version
    python -m tests.contract.make_store --record    # data/golden.json, the answers of the present store

Run the first command when the stored format changes. The answers in golden.json stay valid: they depend on a dataset
and an encoder, which this program makes without random numbers, and not on the format. Run the second command only if
an answer changes on purpose, and read the difference.

The static encoder of the store comes from a BERT with one layer and 16 dimensions, which this program writes in the
public format of Hugging Face. Nothing is trained.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import recollect

STORE = Path(__file__).parent / "data" / "store"
GOLDEN = Path(__file__).parent / "data" / "golden.json"
DIM, POSITIONS = 16, 24

# Each label with its own words.
TOPICS = {
    "bread": "flour yeast dough crust oven loaf",
    "cheese": "milk rennet curd rind cellar goat",
    "wine": "grape barrel cork vineyard cellar bottle",
    "chess": "king pawn bishop rook mate opening",
    "football": "goal striker penalty keeper cup referee",
    "tennis": "racket serve net set court umpire",
    "sailing": "mast wind harbour rope anchor tide",
    "rowing": "oar boat river crew tide bank",
    "astronomy": "comet telescope galaxy planet orbit star",
    "weather": "rain storm cloud wind frost forecast",
    "geology": "rock lava quartz layer fossil cave",
    "botany": "leaf root seed petal moss frost",
    "birds": "nest wing feather owl egg song",
    "bees": "hive honey queen swarm wax nectar",
    "horses": "saddle hoof stable mare bridle gallop",
    "trains": "rail engine station signal carriage bridge",
    "bicycles": "pedal chain wheel brake saddle spoke",
    "bridges": "arch cable river steel span pillar",
    "law": "judge court contract witness appeal verdict",
    "taxes": "income duty tariff credit deduction return",
    "medicine": "vaccine nurse fever surgeon dose blood",
    "opera": "soprano aria stage chorus overture song",
    "painting": "canvas brush oil portrait pigment frame",
    "音楽": "symphony orchestra violin conductor chorus overture",
}
COMMON = ["old", "new", "small", "great", "quiet", "early", "late", "long", "short", "first", "second", "local"]
COMMON += ["famous", "modern", "simple", "strong"]
WORDS_OF_TOPICS = sorted({*" ".join(TOPICS.values()).split(), *COMMON, *TOPICS, "and", "the"})
SENTENCES, TEST_SENTENCES, LENGTH = 12, 2, 5


def choose(text: str, count: int) -> int:
    """A number below `count` that depends only on a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % count


def noise(name: str, *shape: int) -> np.ndarray:
    """Numbers between -1 and 1 that depend only on a name."""
    count = int(np.prod(shape))
    digests = b"".join(hashlib.sha256(f"{name} {block}".encode()).digest() for block in range(-(-count // 16)))
    whole = np.frombuffer(digests, dtype="<u2")[:count].astype(np.float64)
    return (whole / 32_768 - 1).reshape(shape)


def sentence(label: str, number: int) -> tuple[str, list[str]]:
    """A text of words of a label, of common words and sometimes of a second label; and its labels."""
    name, labels = f"{label} {number}", [label]
    own = TOPICS[label].split()
    words = [own[choose(f"{name} {place}", len(own))] for place in range(2)]
    words += [COMMON[choose(f"{name} common {place}", len(COMMON))] for place in range(LENGTH - len(words))]
    if choose(f"{name} has two", 4) == 0:
        second = list(TOPICS)[choose(f"{name} second", len(TOPICS))]
        words[-1] = TOPICS[second].split()[choose(f"{name} its word", 6)]
        labels = list(dict.fromkeys([label, second]))
    order = sorted(range(len(words)), key=lambda place: choose(f"{name} order {place}", 1 << 32))
    return " ".join(words[place] for place in order), labels


def write_dataset(folder: Path) -> None:
    rows: dict[str, list[dict[str, object]]] = {"labels": [], "train": [], "test": []}
    for label in TOPICS:
        rows["labels"].append({"uid": label, "text": f"{label} and {TOPICS[label].split()[0]}"})
        for number in range(SENTENCES + TEST_SENTENCES):
            text, labels = sentence(label, number)
            split = "train" if number < SENTENCES else "test"
            rows[split].append({"uid": f"{label}-{number}", "text": text, "labels": labels})
    folder.mkdir(parents=True)
    for split, lines in rows.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")


def write_encoder(folder: Path, words: Sequence[str] = WORDS_OF_TOPICS, dim: int = DIM) -> None:
    """Write a BERT with one layer and fixed weights, which knows some words."""
    vocabulary = {token: row for row, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    special = [
        {"id": row, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for token, row in vocabulary.items()
        if token.startswith("[")
    ]
    around = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    ids = {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": around,
            "pair": [*around, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": ids,
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(vocabulary),
        "hidden_size": dim,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": dim,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", weights(list(vocabulary), dim))


def weights(tokens: list[str], dim: int) -> dict[str, np.ndarray]:
    """The weights of the BERT. The vector of a word is noise with the vectors of its topics."""
    rows = {token: row for row, token in enumerate(tokens)}
    embeddings = np.stack([noise(token, dim) for token in tokens])
    for topic, words in TOPICS.items():
        for word in [topic, *words.split()]:
            if word in rows:
                embeddings[rows[word]] += 0.7 * noise(f"topic {topic}", dim)
    layer = "encoder.layer.0"
    arrays = {
        "embeddings.word_embeddings.weight": 2 * embeddings,
        "embeddings.position_embeddings.weight": 0.1 * noise("positions", POSITIONS, dim),
        "embeddings.token_type_embeddings.weight": np.zeros((2, dim)),
    }
    linear = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    for name in (*linear, "intermediate.dense", "output.dense"):
        arrays[f"{layer}.{name}.weight"] = 0.2 * noise(name, dim, dim)
        arrays[f"{layer}.{name}.bias"] = np.zeros(dim)
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        arrays[f"{name}.LayerNorm.weight"], arrays[f"{name}.LayerNorm.bias"] = np.ones(dim), np.zeros(dim)
    return {name: array.astype("<f4") for name, array in arrays.items()}


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))


def make_store(store: Path) -> None:
    """Write the dataset and the encoder, train nothing, and publish a version with words and a ranker."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_dataset(Path("dataset"))
        write_encoder(Path("encoder"))
        lengths = {"max_length": POSITIONS, "label_max_length": POSITIONS}
        run = recollect.train("dataset", out="run", encoder="static", static_from="encoder", epochs=0, **lengths)
        recollect.rank(run)
        recollect.build(run, store="store", index="flat", lexical="on", activate=True)
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree("store", store)


# ---- Golden answers ----

QUERIES = {
    "bread": "fresh dough and flour in a hot oven",
    "law": "The judge reads the verdict in court",
    "music": "symphony orchestra, chorus and overture",
    "weather": "rain and wind in the forecast",
    "many": "saddle bridge river song",
    "long": "late comet orbit strong star " * 9,
}
# Options of the answers that Eq. 7 of the paper gives: no words, no ranker.
OPTIONS_OF_VOTES: list[dict[str, object]] = [
    {"top_k": 24},
    {"lambda": 0.0},
    {"lambda": 0.25},
    {"lambda": 1.0},
    {"temperature": 0.02},
    {"temperature": 0.2, "top_b": 1000},
    {"temperature": 1.0, "top_b": 1000, "top_k": 5},
    {"top_b": 1},
    {"top_b": 10, "lambda": 0.8},
    {"top_k": 1},
    {"threshold": 0.2},
    {"allow": ["wine", "weather", "音楽"]},
    {"deny": ["bread", "law", "weather", "音楽"]},
    {"allow": ["bread", "law"], "deny": ["law"], "top_k": 5},
    {"explain": True, "top_k": 2, "top_b": 6},
]
# Options of the answers with words, and of those whose order and probabilities come from the fitted ranker.
OPTIONS_WITH_WORDS: list[dict[str, object]] = [
    {"word_weight": 0.3, "order": "score", "top_k": 4},
    {"word_weight": 1.0, "order": "score", "lambda": 0.25, "top_k": 2},
    {"word_weight": 0.5, "order": "score", "explain": True, "top_k": 2, "top_b": 6},
]
OPTIONS_WITH_RANKER: list[dict[str, object]] = [{"top_k": 2}, {"assign": True}, {"min_probability": 0.3}]


def record() -> None:
    """Write the answers of the present store for the queries and options."""
    from tests.contract.servers import serving

    plain = {"order": "score", "word_weight": 0.0, "top_k": 4, "threshold": 0.001}
    groups = {
        "votes": [plain | each for each in OPTIONS_OF_VOTES],
        "words": OPTIONS_WITH_WORDS,
        "ranked": OPTIONS_WITH_RANKER,
    }
    lines = []
    with serving(STORE, writable=False) as server:
        for group, choices in groups.items():
            for options in choices:
                for name, query in QUERIES.items():
                    answer = server.ask(query, **{"threshold": 0.001, **options}).json()
                    del answer["version"], answer["sequence"]
                    case = {"group": group, "query": name, "options": {"threshold": 0.001, **options}}
                    lines.append(json.dumps(case | {"answer": rounded(answer)}, ensure_ascii=False))
    queries = json.dumps(QUERIES, indent=1, ensure_ascii=False)
    text = f'{{"queries": {queries},\n"cases": [\n' + ",\n".join(lines) + "\n]}\n"
    GOLDEN.write_text(text, encoding="utf-8")


def rounded(value: Any) -> Any:
    """An answer without texts, which the dataset has, and with few digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items() if name not in ("text", "ranked_by")}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        make_store(STORE)
