"""LoRA (Hu et al., 2022): training changes two small matrices beside each weight matrix of a transformer.

    y = (W + s B A) x        s = 2; A: rank rows, random at first; B: rank columns, zero at first

W is frozen, so it needs no gradients and no moments. A checkpoint has the sum W + s B A in the place of W: export and
service know nothing of LoRA. The package peft adds the matrices.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn

from recollect.trainer.errors import TrainingError

_SCALE = 2
_FROZEN, _ADDED = ".base_layer.", ".lora_"


def require_peft(rank: int) -> None:
    """Refuse LoRA without the package peft.

    Raises:
        TrainingError: If peft is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise TrainingError(
            f"--lora {rank}: expected the package peft, found it not installed; pip install 'recollect-xmc[lora]'"
        )


def require_linear_layers(transformer: nn.Module, rank: int) -> None:
    """Refuse LoRA for an encoder without linear layers, such as GPT-2, whose layers are of another class.

    Raises:
        TrainingError: If the encoder has none.
    """
    if not _linear_layers(transformer):
        raise TrainingError(
            f"--lora {rank}: expected an encoder with linear layers (torch.nn.Linear), found none in "
            f"{type(transformer).__name__}; omit --lora, or choose another --encoder"
        )


def add_lora(transformer: nn.Module, rank: int, seed: int) -> None:
    """Add matrices to all linear layers that influence the vectors of tokens. Only these matrices have gradients."""
    import peft

    layers = _linear_layers(transformer)
    torch.manual_seed(seed)  # all ranks have the same matrices
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=rank, lora_alpha=_SCALE * rank, target_modules=layers, lora_dropout=0.0), transformer
    )


def _linear_layers(transformer: nn.Module) -> list[str]:
    return [
        name
        for name, layer in transformer.named_modules()
        if isinstance(layer, nn.Linear) and not name.startswith("pooler.")
    ]


def merged_weights(transformer: nn.Module) -> dict[str, Tensor] | None:
    """Return the weights of a transformer with the added matrices merged in; None if it has none."""
    weights = transformer.state_dict()
    if not any(_ADDED in name for name in weights):
        return None
    merged = {name.replace(_FROZEN, "."): weight for name, weight in weights.items() if _ADDED not in name}
    for name, layer in transformer.named_modules():
        if hasattr(layer, "get_delta_weight"):
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + layer.get_delta_weight("default").detach()
    return merged
