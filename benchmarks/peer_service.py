"""The service that a user would write: FastAPI, sentence-transformers and an exact faiss index, with RAE-XMC's formula.

`benchmarks.peers` starts it with uvicorn. The environment variables DATASET and ENCODER name two folders.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

TEMPERATURE, LAMBDA, TOP_B, TOP_K = 0.04, 0.5, 200, 5


def read(name: str) -> list[dict[str, Any]]:
    with gzip.open(Path(os.environ["DATASET"]) / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class Query(BaseModel):
    query: str


train, labels = read("train"), read("labels")
encoder = SentenceTransformer(os.environ["ENCODER"], device="cpu")
keys = encoder.encode([row["text"] for row in [*train, *labels]], normalize_embeddings=True)
index = faiss.IndexFlatIP(keys.shape[1])
index.add(keys)
app = FastAPI()


@app.post("/predict")
def predict(body: Query) -> dict[str, Any]:
    similarities, found = index.search(encoder.encode([body.query], normalize_embeddings=True), TOP_B)
    weights = np.exp((similarities[0] - similarities[0, 0]) / TEMPERATURE)
    scores: dict[int, float] = {}
    for key, weight in zip(found[0].tolist(), (weights / weights.sum()).tolist(), strict=True):
        if key < len(train):
            for label in train[key]["labels"]:
                scores[label] = scores.get(label, 0) + LAMBDA * weight
        else:
            scores[key - len(train)] = scores.get(key - len(train), 0) + (1 - LAMBDA) * weight
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:TOP_K]
    return {"labels": [{"uid": labels[each]["uid"], "score": scores[each]} for each in best]}
