"""Ranks that `torchrun` starts.

Each process runs `work` of this file, and the tests compare the results that it writes.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist

from recollect.trainer import distributed
from recollect.trainer.distributed import ALONE, Ranks, process_group
from recollect.trainer.encoding.keys import Keys
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.prototypes import Prototypes
from recollect.trainer.methods import losses
from recollect.trainer.sharded import Sharded
from recollect.trainer.training import clustering
from recollect.trainer.training.clustering import balanced_clusters
from recollect.trainer.training.negatives import mine
from recollect.trainer.training.training_state import Progress, load_state, save_state
from recollect.trainer.training.validation import Validation
from tests.trainer.helpers import label_sets, random_sets, random_units
from tests.trainer.test_objective import ALL, Problem, assert_same
from tests.trainer.test_training_state import new_learner

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 120

# An average batch, a batch with a larger pool, and batches with fewer queries or labels than ranks.
BATCHES: dict[str, dict[str, Any]] = {
    "usual": {},
    "mined": {"positives": 2, "hard_negatives": 3},
    "one query, all labels": {"batch_size": 1, "hard_negatives": None},
    "two queries, two labels": {"batch_size": 2, "positives": 1, "hard_negatives": 0},
}
LOSSES = ["softmax", "decoupled", "rae", "soft top k", "pal", "triplet", "two hardest", "triplet sum", "regulariser"]
ROWS = [1, 2, 3, 7, 8, 13]


# The greatest values, at most 3 in descending order, of two rows on each of three ranks.
BEST = [torch.tensor([[5.0, 2.0, -1.0], [1.0, 0.5, 0.0]]), torch.empty(2, 0), torch.tensor([[3.0], [-7.0]])]


def columns(ranks: Ranks, keys: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this rank's share of a pool: similarities, positives, relevance, and similarities of instances."""
    torch.manual_seed(1)
    scores, draws = 5 * torch.randn(6, keys, dtype=torch.float64), torch.rand(6, keys)
    own = slice(*ranks.bounds(keys))
    return scores[:, own].clone().requires_grad_(), draws[:, own] < 0.2, draws[:, own] < 0.4, scores[:, own] / 2


def losses_and_gradients(ranks: Ranks, keys: int) -> dict[str, Any]:
    """Return, for each loss function, the loss summed over the ranks and the gradient of this rank's similarities."""
    found = {}
    for name, loss in {
        "softmax": lambda s, t, p, x: losses.softmax_cross_entropy(s, t, ranks),
        "decoupled": lambda s, t, p, x: losses.decoupled_softmax(s, t, p, ranks),
        "rae": lambda s, t, p, x: losses.rae(s, t, p, x, ~t, ranks),
        "soft top k": lambda s, t, p, x: losses.soft_top_k_loss(s, t, 2, ranks=ranks),
        "pal": lambda s, t, p, x: losses.pal(s, t, ranks),
        "triplet": lambda s, t, p, x: losses.clipped_triplet(s / 10, t, p, ranks=ranks),
        "two hardest": lambda s, t, p, x: losses.clipped_triplet(s / 10, t, p, hardest=2, ranks=ranks),
        "triplet sum": lambda s, t, p, x: losses.triplet_sum(s / 10, t, p, ranks=ranks),
        "regulariser": lambda s, t, p, x: losses.prototype_regulariser(s, x, t, p, ranks=ranks),
    }.items():
        scores, positives, relevant, others = columns(ranks, keys)
        value = loss(scores, positives, relevant, others)
        (value * torch.arange(1, 7)).sum().backward()
        found[name] = (ranks.all_reduce_sum(value.detach()), scores.grad)
    return found


def exchanges(ranks: Ranks) -> dict[str, Any]:
    """Return the result of each collective operation."""
    own = torch.tensor([[1.0, -5.0, 3.0]]) * (ranks.rank + 1)
    values = (torch.arange(4.0) * (ranks.rank - 0.5)).requires_grad_()
    total = ranks.log_sum_exp(values)
    (total * (ranks.rank + torch.arange(4.0))).sum().backward()
    best = BEST[ranks.rank].clone().requires_grad_()
    top = ranks.top_k(best, 3)
    (top * torch.arange(1.0, 1 + top.shape[1]) * (ranks.rank + 1)).sum().backward()
    model = torch.nn.Linear(3, 2)
    model.weight.grad = torch.full((2, 3), float(ranks.rank + 1))
    model.bias.grad = torch.arange(2.0) * ranks.rank
    ranks.all_reduce_gradients(model)
    table = torch.nn.Embedding(5, 2)
    rows = np.array([1, 4])
    table.weight.grad = torch.zeros(5, 2)
    table.weight.grad[rows] = torch.full((2, 2), float(ranks.rank + 1))
    ranks.all_reduce_gradients(table, [table.weight], rows)
    arrays = [np.arange(3 * rows).reshape(rows, 3) for rows in ROWS]
    return {
        "rank": (ranks.rank, ranks.size, ranks.first),
        "all_reduce_sum": (ranks.all_reduce_sum(own), own),
        "all_reduce_max": (ranks.all_reduce_max(own), own),
        "broadcast_object": ranks.broadcast_object({"rank": ranks.rank}),
        "log_sum_exp": (values.detach(), total.detach(), values.grad),
        "top_k": (top.detach(), best.grad),
        "gradients": (model.weight.grad, model.bias.grad, table.weight.grad),
        "all_gather": [ranks.all_gather(torch.from_numpy(ranks.share(whole)), len(whole)) for whole in arrays],
        "all_gather_arrays": [ranks.all_gather_arrays(ranks.share(whole), len(whole), "cpu") for whole in arrays],
        "all_reduce_array": ranks.all_reduce_array(np.arange(5.0) * (ranks.rank + 1), "cpu"),
    }


def objectives(ranks: Ranks, batch: str) -> dict[str, Any]:
    """Return the loss and the gradient of each method, and the centroids of prime after the step."""
    found: dict[str, Any] = {}
    for method in ALL:
        problem = Problem(method)
        found[method] = problem.backward(problem.batch(**BATCHES[batch]), ranks)
    prime = Problem("prime")
    head = prime.step(prime.batch(**BATCHES[batch]), ranks)[1].head
    assert isinstance(head, Prototypes)
    assert head.centroids is not None
    return found | {"centroids": head.centroids.sums}


def shared_arrays() -> dict[str, Any]:
    """Vectors of instances and labels, and the labels of each instance."""
    rng = np.random.default_rng(9)
    sets = random_sets(rng, 100, 30)
    return {"vectors": random_units(rng, 100), "labels": random_units(rng, 30), "sets": label_sets(sets)}


def divided_arrays(ranks: Ranks) -> dict[str, Any]:
    """Return gathered rows, sums of labels, and clusters of vectors that are divided over the ranks."""
    given = shared_arrays()
    vectors = Sharded.of(given["vectors"], ranks)
    found: dict[str, Any] = {"clusters": [], "sums": vectors.label_sums(given["sets"].to_csr(30))}
    wanted = [np.array(rows, dtype=np.int64) for rows in ([], [99], [5, 3, 5, 70, 40], range(100))]
    found["rows"] = [(rows, vectors.gather(rows), vectors.gather(rows, to=min(1, ranks.size - 1))) for rows in wanted]
    found["blocks"] = list(vectors.blocks())
    found["half"] = Sharded.of(given["vectors"].astype(np.float16), ranks).gather(np.arange(100))
    rows = np.arange(3, 98)
    for clustering._CHUNK_ROWS in (16, 4_096):
        found["clusters"].append(balanced_clusters(vectors, rows, 12, np.random.default_rng(2)))
    return found


def mined_negatives(ranks: Ranks) -> dict[str, Any]:
    """Return negatives that are drawn from mined lists, and again from the lists of a saved training state."""
    given = shared_arrays()
    mined = mine(ranks.share(given["vectors"]), given["labels"], given["sets"], 7, "exact", "cpu", ranks)
    folder = Path(ranks.broadcast_object(tempfile.mkdtemp()))
    save_state(folder, Progress(step=1), new_learner(negatives=mined), ranks)
    ranks.broadcast_object(None)  # all ranks wait for rank 0
    restored = new_learner()
    load_state(folder, restored, ranks)
    assert restored.negatives is not None
    ranks.all_reduce_sum(torch.zeros(1))  # all ranks have read the state
    if ranks.first:
        shutil.rmtree(folder)
    rows = np.array([99, 4, 50, 0, 33])
    drawn = [each.draw(rows, 3, np.random.default_rng(4)) for each in (mined, restored.negatives)]
    return {"held": len(mined.labels.own), "drawn": drawn}


def validation(ranks: Ranks) -> dict[float, list[float]]:
    """Return the validation scores with text keys and with enriched keys, for many and for few queries and labels."""
    given, scores = shared_arrays(), dict[float, list[float]]()
    for alpha in (0.0, 0.5):
        for instances, labels, queries in ((100, 30, 40), (7, 2, 2), (100, 30, 1)):
            sets = label_sets([{row % labels} for row in range(instances)])
            keys = Keys(Sharded.of(given["vectors"][:instances], ranks), given["labels"][:labels])
            none = label_sets([set()] * instances)
            held_out = np.isin(np.arange(instances), np.random.default_rng(1).permutation(instances)[:queries])
            score = Validation(held_out, sets, labels, alpha, "cpu", none).score(keys)
            scores.setdefault(alpha, []).append(score)
    return scores


WORK: dict[str, Callable[[Ranks], dict[str, Any]]] = {
    "exchanges": exchanges,
    "seven keys": lambda ranks: losses_and_gradients(ranks, 7),
    **{batch: functools.partial(objectives, batch=batch) for batch in BATCHES},
    "divided arrays": divided_arrays,
    "mined negatives": mined_negatives,
    "validation": validation,
    "two keys": lambda ranks: losses_and_gradients(ranks, 2),
}


@functools.cache
def alone(name: str) -> dict[str, Any]:
    """Return the results of a single process."""
    return WORK[name](ALONE)


def work(folder: Path) -> None:
    """Run all tasks in this process, and write their results."""
    distributed._TIMEOUT, distributed._CHUNK_ROWS = timedelta(seconds=20), 2
    with process_group("cpu") as ranks:
        for name, task in WORK.items():
            torch.save(task(ranks), folder / f"{name} {ranks.rank}.pt")
    assert not dist.is_initialized()


class Group(NamedTuple):
    """The results of all ranks that one `torchrun` command starts."""

    size: int
    folder: Path
    log: str

    def found(self, name: str) -> list[Any]:
        """Load the results of a task by rank."""
        paths = [self.folder / f"{name} {rank}.pt" for rank in range(self.size)]
        assert all(path.exists() for path in paths), self.log
        return [torch.load(path, weights_only=False) for path in paths]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Three ranks, because most numbers of rows are no multiple of three."""
    folder, size = tmp_path_factory.mktemp("ranks"), 3
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    process = subprocess.Popen(
        [*torchrun, "-m", "tests.trainer.test_distributed", str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        log, _ = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then stops its ranks
        log, _ = process.communicate()
    return Group(size, folder, log)


def test_all_ranks_succeed(group: Group) -> None:
    assert {path.name for path in group.folder.iterdir()} == {
        f"{name} {rank}.pt" for name in WORK for rank in range(group.size)
    }, group.log


def test_each_rank_gets_its_own_number(group: Group) -> None:
    assert [found["rank"] for found in group.found("exchanges")] == [
        (rank, group.size, rank == 0) for rank in range(group.size)
    ]


def test_all_reduce_sum_and_max_include_the_values_of_all_ranks(group: Group) -> None:
    found = group.found("exchanges")
    parts = torch.stack([rank["all_reduce_sum"][1] for rank in found])
    for rank in found:
        assert torch.equal(rank["all_reduce_sum"][0], parts.sum(dim=0))
        assert torch.equal(rank["all_reduce_max"][0], parts.amax(dim=0))


def test_broadcast_object_gives_all_ranks_the_object_of_rank_0(group: Group) -> None:
    assert [found["broadcast_object"] for found in group.found("exchanges")] == [{"rank": 0}] * group.size


def test_all_gather_concatenates_unequal_and_empty_shares(group: Group) -> None:
    for found in group.found("exchanges"):
        for rows, tensor, array in zip(ROWS, found["all_gather"], found["all_gather_arrays"], strict=True):
            whole = np.arange(3 * rows).reshape(rows, 3)
            np.testing.assert_array_equal(tensor.numpy(), whole)
            np.testing.assert_array_equal(array, whole)


def test_all_reduce_array_sums_all_chunks(group: Group) -> None:
    for found in group.found("exchanges"):
        np.testing.assert_array_equal(found["all_reduce_array"], np.arange(5.0) * 6)


def test_rows_of_a_divided_array_are_gathered_on_every_rank_or_on_one(group: Group) -> None:
    vectors = shared_arrays()["vectors"]
    for rank, found in enumerate(group.found("divided arrays")):
        for rows, everywhere, on_one in found["rows"]:
            np.testing.assert_array_equal(everywhere, vectors[rows])
            if rank == 1:
                np.testing.assert_array_equal(on_one, vectors[rows])
        np.testing.assert_array_equal(np.concatenate(found["blocks"]), vectors)
        np.testing.assert_array_equal(found["half"], vectors.astype(np.float16))


def test_sums_of_labels_and_clusters_over_ranks_equal_those_of_a_single_process(group: Group) -> None:
    expected = alone("divided arrays")
    for found in group.found("divided arrays"):
        np.testing.assert_allclose(found["sums"], expected["sums"], atol=1e-5)
        np.testing.assert_array_equal(found["clusters"], expected["clusters"])


def test_each_rank_holds_mined_negatives_of_its_share_and_draws_those_of_a_single_process(group: Group) -> None:
    expected = alone("mined negatives")
    assert len(expected["drawn"][0]) > 5
    for found in group.found("mined negatives"):
        assert found["held"] in (33, 34)
        for drawn in found["drawn"]:
            np.testing.assert_array_equal(drawn, expected["drawn"][0])
    np.testing.assert_array_equal(*expected["drawn"])


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_validation_score_over_ranks_equals_the_score_of_a_single_process(group: Group, alpha: float) -> None:
    expected = alone("validation")[alpha]
    assert max(expected) > 10
    for found in group.found("validation"):
        np.testing.assert_allclose(found[alpha], expected, rtol=1e-9)


def test_log_sum_exp_and_its_gradient_include_the_values_of_all_ranks(group: Group) -> None:
    found = [rank["log_sum_exp"] for rank in group.found("exchanges")]
    values = torch.stack([value for value, _, _ in found]).requires_grad_()
    total = torch.logsumexp(values, dim=0)
    sum((total * (rank + torch.arange(4.0))).sum() for rank in range(group.size)).backward()
    for rank, (_, result, gradient) in enumerate(found):
        torch.testing.assert_close(result, total.detach())
        torch.testing.assert_close(gradient, values.grad[rank])


def test_top_k_includes_all_ranks_and_the_gradient_of_a_value_returns_to_its_rank(group: Group) -> None:
    found = [rank["top_k"] for rank in group.found("exchanges")]
    own = [part.clone().requires_grad_() for part in BEST[: group.size]]
    top = torch.cat(own, dim=1).topk(3, dim=1).values
    sum((top * torch.arange(1.0, 4.0) * (rank + 1)).sum() for rank in range(group.size)).backward()
    for (result, gradient), part in zip(found, own, strict=True):
        assert torch.equal(result, top.detach())
        assert torch.equal(gradient, part.grad)


def test_all_reduce_gradients_gives_every_rank_the_sum_of_the_gradients(group: Group) -> None:
    numbers = range(group.size)
    for found in group.found("exchanges"):
        weight, bias, table = found["gradients"]
        assert torch.equal(weight, torch.full((2, 3), float(sum(rank + 1 for rank in numbers))))
        assert torch.equal(bias, torch.arange(2.0) * sum(numbers))
        total = sum(rank + 1.0 for rank in numbers)
        assert table.tolist() == [[0, 0], [total, total], [0, 0], [0, 0], [total, total]]


@pytest.mark.parametrize("keys", ["seven keys", "two keys"])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_over_a_pool_split_between_ranks_equals_the_loss_of_a_single_process(
    group: Group, keys: str, loss: str
) -> None:
    found = [rank[loss] for rank in group.found(keys)]
    value, gradient = alone(keys)[loss]
    for result, _ in found:
        torch.testing.assert_close(result, value)
    torch.testing.assert_close(torch.cat([part for _, part in found], dim=1), gradient)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("method", ALL)
def test_each_rank_gets_the_loss_and_gradient_of_a_single_process(group: Group, method: str, batch: str) -> None:
    expected = alone(batch)[method]
    assert expected[1].any() or (method, batch) == ("softtopk", "two queries, two labels")  # all keys are in the top 5
    for found in group.found(batch):
        assert_same(found[method], expected)


@pytest.mark.parametrize("batch", BATCHES)
def test_each_rank_gets_the_centroids_of_a_single_process(group: Group, batch: str) -> None:
    expected = alone(batch)["centroids"]
    for found in group.found(batch):
        torch.testing.assert_close(found["centroids"], expected)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [0, 1, 5, 8, 1_000_003])
def test_shares_of_the_ranks_cover_all_rows_and_differ_by_at_most_one_row(size: int, rows: int) -> None:
    bounds = [Ranks(rank, size).bounds(rows) for rank in range(size)]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == rows
    assert max(stop - start for start, stop in bounds) - min(stop - start for start, stop in bounds) <= 1
    assert Ranks(0, size).bounds(rows, size - 1) == bounds[-1]


def test_process_started_without_torchrun_is_the_only_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with process_group("cpu") as ranks:
        assert ranks == ALONE
        assert not dist.is_initialized()


class TestRefused:
    @pytest.fixture(autouse=True)
    def started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The environment of the third of four processes on one machine."""
        variables = {"WORLD_SIZE": 4, "RANK": 2, "LOCAL_RANK": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    def refusal(self, device: str) -> str:
        with pytest.raises(TrainingError) as refused, process_group(device):
            pytest.fail("the process group must be refused")
        assert not dist.is_initialized()
        return str(refused.value)

    def test_world_size_without_the_other_variables_of_torchrun_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("RANK", "MASTER_PORT"):
            monkeypatch.delenv(name)
        assert self.refusal("cpu") == (
            "WORLD_SIZE=4: expected RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT beside it, as torchrun sets them, found "
            "no RANK, MASTER_PORT; start with torchrun, or unset WORLD_SIZE"
        )

    def test_more_processes_than_gpus_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert self.refusal("cuda") == (
            "LOCAL_RANK=2: expected a GPU for each process, found 2; start torchrun --nproc-per-node 2, or use "
            "--device cpu"
        )


def test_collective_operations_of_a_single_rank_return_its_own_values() -> None:
    values = torch.arange(3.0)
    assert ALONE.first
    assert ALONE.broadcast_object("value") == "value"
    for given in (
        ALONE.all_reduce_sum(values),
        ALONE.all_reduce_max(values),
        ALONE.log_sum_exp(values),
        ALONE.all_gather(values, 3),
    ):
        assert given is values
    rows = values[None]
    assert ALONE.top_k(rows, 3) is rows
    assert ALONE.bounds(5) == (0, 5)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
