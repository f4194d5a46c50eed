"""The training methods: which pool of keys, which loss, which defaults; one short file each."""

from trainer.methods import dexml, infonce, prime, rae, softtopk, supcon, unidec
from trainer.methods.method import Method, Options, Scored, ScoredLabels

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD for module in (rae, dexml, softtopk, prime, unidec, supcon, infonce)
}

__all__ = ["METHODS", "Method", "Options", "Scored", "ScoredLabels"]
