"""Static encoders: their vectors, their start from a pretrained encoder, and their training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import recollect
from recollect.trainer.encoding import static_model as model_file
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint, save_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.static_model import StaticModel
from recollect.trainer.static.pretrained import make_static
from tests.trainer.conftest import TEXTS, TinyEncoder, load
from tests.trainer.runs import KILLED, USUAL, Moment, Train, results, run_recollect, untrained, weights

TOKENS, DIM = 20, 6
# Without held-out instances, the checkpoint is the newest model instead of the best one.
NEWEST = ["--validation-fraction", 0]


@pytest.fixture
def model() -> StaticModel:
    """A model with random vectors, weights and projection, and with three positions that weigh 1, 4 and 2."""
    torch.manual_seed(7)
    made = StaticModel.of(torch.randn(TOKENS, DIM), torch.rand(TOKENS), positions=3)
    made.positions.data = torch.tensor([1.0, 4.0, 2.0]).log() / model_file._POSITION_RATE
    torch.nn.init.normal_(made.projection.weight)
    return made


@pytest.fixture
def static(tiny_bert: TinyEncoder) -> Encoder:
    return make_static(load(tiny_bert.folder), "static:tiny", 32, 8, [list(TEXTS), ["red red red red chair"]])


class TestStaticModel:
    def test_vector_is_the_projected_weighted_sum_of_the_token_vectors(self, model: StaticModel) -> None:
        ids = torch.tensor([[3, 5, 5, 1], [7, 0, 0, 0]])
        mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
        e, w, p = (
            each.detach().double().numpy() for each in (model.tokens.weight, model.weights, model.projection.weight)
        )
        placed = zip(
            (3, 5, 5, 1), (1, 4, 2, 2), strict=True
        )  # the last position has the weight of the position before it
        expected = np.stack([p @ sum(position * w[t] * e[t] for t, position in placed), p @ (w[7] * e[7])])
        np.testing.assert_allclose(model(ids, mask).detach().numpy(), expected, atol=1e-5)

    def test_training_leaves_out_some_tokens_and_evaluation_none(self, model: StaticModel) -> None:
        ids = torch.arange(TOKENS).expand(50, -1)
        mask = torch.ones_like(ids)
        trained, evaluated = model.train()(ids, mask), model.eval()(ids, mask)
        # Equal rows may differ in their last digits: the CPU computes some rows of a product in another order.
        assert not torch.allclose(trained, trained[:1], atol=1e-3)
        torch.testing.assert_close(evaluated, evaluated[:1].expand_as(evaluated))


class TestUntrainedStaticEncoder:
    def test_checkpoint_keeps_the_encoder(self, static: Encoder, tmp_path: Path) -> None:
        save_checkpoint(static, tmp_path / "checkpoint")
        loaded = load_checkpoint(tmp_path / "checkpoint", "cpu")
        assert loaded.model.is_static
        assert loaded.config == static.config
        assert encoder_digest(loaded) == encoder_digest(static)
        np.testing.assert_array_equal(loaded.encode(TEXTS, 32), static.encode(TEXTS, 32))

    def test_encoder_with_a_case_sensitive_tokenizer_or_other_special_tokens_can_be_the_source(
        self, request: pytest.FixtureRequest
    ) -> None:
        for kind in ("distilbert", "roberta"):
            made = make_static(load(request.getfixturevalue(f"tiny_{kind}").folder), "static", 32, 8, [list(TEXTS)])
            assert np.isfinite(made.encode(["", "quick Brown fox"], 32)).all()


@pytest.fixture
def static_flags(lesson: Path, tiny_bert: TinyEncoder) -> list[object]:
    return ["train", lesson, *USUAL, "--encoder", "static", "--static-from", tiny_bert.folder, "--device", "cpu"]


class TestTraining:
    @pytest.fixture
    def run(self, static_flags: list[object], tmp_path: Path) -> Callable[..., int]:
        def run(*more: object, killed: Moment | None = None) -> int:
            (status,) = run_recollect([*static_flags, "--save-minutes", 0, *more], tmp_path / "log", killed)
            return status

        return run

    def test_killed_training_has_the_weights_and_keys_of_an_uninterrupted_training(
        self, run: Callable[..., int], tmp_path: Path
    ) -> None:
        assert run("--out", tmp_path / "never", *NEWEST) == 0, (tmp_path / "log").read_text()
        moment = Moment("recollect.trainer.training.objective.Objective.backward", 8)
        assert run("--out", tmp_path / "run", *NEWEST, killed=moment) == KILLED
        assert run("--out", tmp_path / "run", *NEWEST, "--resume") == 0, (tmp_path / "log").read_text()
        assert results(tmp_path / "run") == results(tmp_path / "never")

    def test_methods_train_table_weights_positions_and_projection(
        self, run: Callable[..., int], static_flags: list[object], tmp_path: Path
    ) -> None:
        assert recollect.main([str(each) for each in (*untrained(static_flags), "--out", tmp_path / "zero")]) == 0
        assert run("--out", tmp_path / "run", "--method", "unidec", "--epochs", 1, *NEWEST) == 0, (
            tmp_path / "log"
        ).read_text()
        before, after = weights(tmp_path / "zero"), weights(tmp_path / "run")
        for name in ("tokens.weight", "weights", "positions", "projection.weight"):
            assert not torch.equal(before[name], after[name]), name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--static-from", "minilm"], "--static-from: expected --encoder static, found --encoder"),
        (["--encoder", "static", "--static-from", "static"], "--static-from static: expected a pretrained encoder"),
        (["--encoder", "static", "--static-from", "no/such"], "--static-from no/such: expected a Hugging Face text"),
        (["--encoder", "static", "--label-inputs", "text"], "found --encoder static"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_contradictory_flags_of_a_static_encoder_are_refused(
    train: Train, run_folder: Path, more: list[str], message: str
) -> None:
    outcome = train(*more)
    assert outcome.status == 2
    assert message in outcome.message
    assert not run_folder.exists()
