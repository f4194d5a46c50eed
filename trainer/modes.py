"""The modes of `recollect train`: the flags that have an effect only in some trainings, and what they need.

Each function below returns what a call has in place of such a need, in the words of a message; None if nothing is
missing. A flag that the user gives without its need is refused. Values of a preset are not: they may need more than the
flags with which the user overrides the preset.
"""

from __future__ import annotations

from recollect.core.settings import ReadIf, as_flag, is_encoder_url
from recollect.trainer.methods import METHODS, Method, methods_with
from recollect.trainer.settings import STATIC, TrainingInputs
from recollect.trainer.train_flags import SharedTrainSettings


def chosen_method(settings: SharedTrainSettings) -> Method:
    return METHODS[settings.method]


# ---- Training ----


def untrained(settings: SharedTrainSettings) -> str | None:
    return "--epochs 0" if settings.epochs == 0 else None


def whole_encoder(settings: SharedTrainSettings) -> str | None:
    """The flag by which the user trains the whole encoder."""
    if settings.trained != "full":
        return None
    return f"--train {settings.train}" if settings.train else f"--encoder {settings.encoder}"


def _changing_vectors(settings: SharedTrainSettings) -> str | None:
    return None if untrained(settings) else whole_encoder(settings)


def _static(settings: TrainingInputs) -> str | None:
    return f"--encoder {STATIC}" if settings.encoder == STATIC else None


def _not_static(settings: TrainingInputs) -> str | None:
    return None if _static(settings) else f"--encoder {settings.encoder}"


def _served(settings: TrainingInputs) -> str | None:
    return f"--encoder {settings.encoder}" if is_encoder_url(settings.encoder) else None


def _without_products(settings: SharedTrainSettings) -> str | None:
    on_gpu = settings.device == "cuda" or settings.precision == "tf32"
    return untrained(settings) if on_gpu else untrained(settings) and (_static(settings) or _served(settings))


def _without_lora(settings: SharedTrainSettings) -> str | None:
    above = None if settings.trained == "full" else f"--train {settings.trained}"
    return _static(settings) or above


# ---- Held-out texts and random draws ----


def _without_split(settings: SharedTrainSettings) -> str | None:
    return untrained(settings) if settings.query_encoder == "same" else None


def _without_seed(settings: SharedTrainSettings) -> str | None:
    return _without_split(settings) if settings.rank == "no" else None


def without_held_out(settings: SharedTrainSettings) -> str | None:
    return "--validation-fraction 0" if settings.validation_fraction == 0 else None


# ---- Method, head and true labels ----


def _without_softmax(settings: SharedTrainSettings) -> str | None:
    return f"--method {settings.method}" if chosen_method(settings).temperature is None else None


def without_head(settings: SharedTrainSettings) -> str | None:
    method = chosen_method(settings)
    option = f" without {as_flag(method.head_option)}" if method.head_option else ""
    return None if method.has_head(settings) else f"--method {settings.method}{option}"


def _without_table(settings: SharedTrainSettings) -> str | None:
    return without_head(settings) or chosen_method(settings).without_table(settings)


def _pulling_all(settings: SharedTrainSettings) -> str | None:
    """A pool of all labels, if the loss pulls a query to all its true labels there, and nothing follows the draws."""
    method = chosen_method(settings)
    all_labels = method.pulls_pool and method.mined(settings.hard_negatives) is None
    all_labels = all_labels and not method.follows_draws(settings)
    return f"--method {settings.method} with all labels" if all_labels else None


def _without_draw(settings: SharedTrainSettings) -> str | None:
    drawn = chosen_method(settings).positives if settings.positives is None else settings.positives
    return _pulling_all(settings) or (None if drawn else _off(settings, "positives", "draws none"))


def _without_propensity(settings: SharedTrainSettings) -> str | None:
    if settings.best or settings.rank != "no":
        return None
    sampling = settings.positive_sampling or chosen_method(settings).positive_sampling
    uniform = None if sampling == "propensity" else _off(settings, "positive_sampling", "draws uniformly")
    return untrained(settings) or uniform or _without_draw(settings)


# ---- Mined negatives and clustered batches ----


def _without_mining(settings: SharedTrainSettings) -> str | None:
    mined = chosen_method(settings).mined(settings.hard_negatives)
    return None if mined else _off(settings, "hard_negatives", "mines none")


def _mined_by_steps(settings: SharedTrainSettings) -> str | None:
    return f"--mine-every {settings.mine_every}" if settings.mine_every else None


def without_clusters(settings: SharedTrainSettings) -> str | None:
    none = chosen_method(settings).clusters == "none" if settings.clusters is None else settings.clusters == 0
    return _off(settings, "clusters", "uses none") if none else None


def _off(settings: SharedTrainSettings, switch: str, default: str) -> str:
    """What switches a part of the training off: the flag `switch`, or the default of the method."""
    given = getattr(settings, switch)
    return f"--method {settings.method}, which {default}" if given is None else f"{as_flag(switch)} {given}"


# ---- The flags ----

_OF_METHODS = tuple(dict.fromkeys(name for each in METHODS.values() for name in each.options.model_fields))
_OF_MINING = ("mine_from", "mine_every", "mine_every_epochs", "mine_top")
_OF_CLUSTERS = ("cluster_from", "cluster_every", "cluster_double_at")
_OF_HEADS = ("head_learning_rate", "table_learning_rate")
_OF_TRAINING = (
    *("train", "method", "label_inputs", "lora", "micro_batch", "save_minutes"),
    *("max_steps", "max_seconds", "batch_size", "learning_rate", *_OF_HEADS, "warmup", "weight_decay", "clip_norm"),
    *("temperature", "embedding_dropout", "positives", "positive_sampling", "hard_negatives", *_OF_MINING),
    *("clusters", *_OF_CLUSTERS, "validate_every", "validate_lambda", *_OF_METHODS),
)


def _of_method(name: str) -> ReadIf:
    """The methods that have an option."""
    methods = methods_with(name)
    found = "--method {}".format
    return ReadIf(
        (name,),
        found(" or ".join(methods)),
        lambda settings: None if settings.method in methods else found(settings.method),
    )


OF_ENCODER = (
    ReadIf(("static_from",), f"--encoder {STATIC}", _not_static),
    ReadIf(("query_prompt", "label_prompt"), "an encoder with a transformer", _static),
    ReadIf(("pooling", "max_length", "label_max_length"), "no server of vectors, which decides this itself", _served),
)
READ_IF = (
    *OF_ENCODER,
    ReadIf(("minutes",), "--best", lambda settings: None if settings.best else "no --best"),
    ReadIf(("scale",), "--preset, whose values it multiplies", lambda settings: None if settings.preset else "none"),
    ReadIf(_OF_TRAINING, "a training", untrained),
    ReadIf(("precision",), "a training, or a transformer that encodes on a CPU", _without_products),
    ReadIf(("vectors",), "--train adapter or --epochs 0, because all vectors change otherwise", _changing_vectors),
    ReadIf(("label_inputs",), "--train adapter, because an encoder reads label texts", whole_encoder),
    ReadIf(("lora",), "--train full and an encoder with a transformer", _without_lora),
    ReadIf(("validation_fraction",), "a training, or --query-encoder static", _without_split),
    ReadIf(("seed",), "a training, --query-encoder static, or --rank", _without_seed),
    ReadIf(("validate_lambda",), "held-out texts", without_held_out),
    *map(_of_method, _OF_METHODS),
    ReadIf(("temperature",), "a method with a softmax", _without_softmax),
    ReadIf(("head_learning_rate",), "a method with a head", without_head),
    ReadIf(("table_learning_rate",), "a head with vectors of labels", _without_table),
    ReadIf(("positives",), "true labels to draw", _pulling_all),
    ReadIf(("positive_sampling",), "true labels to draw", _without_draw),
    ReadIf(("propensity",), "--positive-sampling propensity with true labels to draw, or --rank", _without_propensity),
    ReadIf(_OF_MINING, "hard negatives to mine (--hard-negatives)", _without_mining),
    ReadIf(("mine_every_epochs",), "--mine-every 0", _mined_by_steps),
    ReadIf(_OF_CLUSTERS, "clustered batches (--clusters)", without_clusters),
)
