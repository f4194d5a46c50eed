"""The training methods: which pool of keys, which loss, which defaults; one short file each."""

from trainer.methods import dexml, infonce, rae, softtopk
from trainer.methods.method import Method, Scored

METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in (rae, dexml, softtopk, infonce)}

__all__ = ["METHODS", "Method", "Scored"]
