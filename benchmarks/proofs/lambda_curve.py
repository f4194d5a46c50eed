"""RAE-XMC, Tables 4 and 8: instances and labels together are better than either alone.

The measurement is P@1 on the test split of the built-in sample for several values of lambda, with the packaged encoder
and without training.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from trainer.data.dataset import open_dataset
from trainer.data.sample import write_sample
from trainer.encoding.pretrained import load_pretrained
from trainer.memory.inference import InferenceSetting, Neighbours, predict
from trainer.memory.memory import DEFAULTS
from trainer.memory.search import nearest
from trainer.metrics import hits, precision_at

LAMBDAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_TOP_B, _MAX_LENGTH = int(DEFAULTS["top_b"]), 64


def prove(test_queries: int = 2**31) -> dict[float, float]:
    """Return P@1 in percent for each lambda. The best lambda is neither 0 nor 1."""
    with tempfile.TemporaryDirectory() as folder:
        write_sample(Path(folder, "sample"))
        dataset = open_dataset(Path(folder, "sample"))
        train, test = dataset.read_split("train"), dataset.read_split("test").head(test_queries)
    encoder = load_pretrained("minilm", "auto", _MAX_LENGTH, _MAX_LENGTH, "cpu")
    queries, instance_keys, label_keys = (
        encoder.encode(texts.to_pylist(), _MAX_LENGTH)
        for texts in (test.entries.texts, train.entries.texts, dataset.labels.texts)
    )
    instances, labels = (Neighbours(*nearest(queries, keys, _TOP_B)) for keys in (instance_keys, label_keys))
    settings = [InferenceSetting(lambda_, DEFAULTS["temperature"], _TOP_B) for lambda_ in LAMBDAS]
    truth = test.labels.to_csr(len(dataset.labels))
    values = train.labels.to_csr(len(dataset.labels))
    return {
        setting.lambda_: 100 * float(np.mean(precision_at(hits(predictions, truth), 1)))
        for setting, predictions in predict(instances, labels, values, settings, 1)
    }
