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

from recollect.trainer import clustering, distributed
from recollect.trainer.clustering import balanced_clusters
from recollect.trainer.distributed import ALONE, Ranks, process_group
from recollect.trainer.errors import MemoryFolderError, TrainingError
from recollect.trainer.methods import METHODS, prime
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.keys import Keys
from recollect.trainer.training.negatives import mine
from recollect.trainer.training.training_state import Progress, load_state, save_state
from recollect.trainer.training.validation import Validation
from tests.trainer.helpers import label_sets, options, random_sets, random_units
from tests.trainer.test_losses import Pool, scored
from tests.trainer.test_objective import ALL, Problem, assert_same
from tests.trainer.test_training_state import new_learner

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 120

# A batch with a large pool, and one with fewer queries and labels than ranks.
BATCHES: dict[str, dict[str, Any]] = {
    "mined": {"positives": 2, "hard_negatives": 3},
    "two queries, two labels": {"batch_size": 2, "positives": 1, "hard_negatives": 0},
}


def columns(ranks: Ranks, keys: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this rank's share of a pool: similarities, positives, relevance, and similarities of instances."""
    torch.manual_seed(1)
    scores, draws = 5 * torch.randn(6, keys, dtype=torch.float64), torch.rand(6, keys)
    own = slice(*ranks.bounds(keys))
    return scores[:, own].clone().requires_grad_(), draws[:, own] < 0.2, draws[:, own] < 0.4, scores[:, own] / 2


def losses_and_gradients(ranks: Ranks) -> dict[str, Any]:
    """Return, for each loss function, the loss summed over the ranks and the gradient of this rank's similarities."""
    found = {}
    for name, loss in {
        "softmax": METHODS["infonce"].loss,
        "decoupled": METHODS["dexml"].loss,
        "rae": METHODS["rae"].loss,
        "soft top k": METHODS["softtopk"].loss,
        "triplet": METHODS["ngame"].loss,
        "regulariser": lambda scored, options: prime.regulariser(scored, options.triplet_negatives),
    }.items():
        scores, positives, relevant, others = columns(ranks)
        pool = Pool(scores, positives & relevant, relevant, others, ~positives)
        views = {"triplet": (scores / 10,), "regulariser": (scores, others)}.get(name, ())
        method = {"soft top k": "softtopk", "triplet": "ngame", "regulariser": "ngame"}.get(name, "rae")
        given = {"softtopk": {"softtopk_k": 2}, "ngame": {"triplet_negatives": 2}}.get(method, {})
        value = loss(scored(pool, ranks, *views), options(method, **given))
        (value * torch.arange(1, 7)).sum().backward()
        found[name] = (ranks.all_reduce_sum(value.detach()), scores.grad)
    return found


def objectives(ranks: Ranks, batch: str) -> dict[str, Any]:
    """Return the loss and the gradient of each method."""
    found: dict[str, Any] = {}
    for method in ALL:
        problem = Problem(method)
        found[method] = problem.backward(problem.batch(**BATCHES[batch]), ranks)
    return found


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


def validation(ranks: Ranks) -> list[float]:
    """Return the validation scores for many and for few queries and labels."""
    given, scores = shared_arrays(), []
    for instances, labels, queries in ((100, 30, 40), (7, 2, 2), (100, 30, 1)):
        sets = label_sets([{row % labels} for row in range(instances)])
        keys = Keys(Sharded.of(given["vectors"][:instances], ranks), given["labels"][:labels])
        none = label_sets([set()] * instances)
        held_out = np.isin(np.arange(instances), np.random.default_rng(1).permutation(instances)[:queries])
        scores.append(Validation(held_out, sets, labels, "cpu", none).score(keys))
    return scores


def answers_of_first(ranks: Ranks) -> dict[str, Any]:
    """Return what rank 0 computes, and the message of the error that it raises."""

    def refuse() -> None:
        raise MemoryFolderError("--precision: refused by rank 0")

    with pytest.raises(MemoryFolderError) as refused:
        ranks.compute_first(refuse)
    return {"value": ranks.compute_first(lambda: f"of rank {ranks.rank}"), "error": str(refused.value)}


WORK: dict[str, Callable[[Ranks], dict[str, Any]]] = {
    "losses": losses_and_gradients,
    **{batch: functools.partial(objectives, batch=batch) for batch in BATCHES},
    "divided arrays": divided_arrays,
    "mined negatives": mined_negatives,
    "validation": validation,
    "answers of the first": answers_of_first,
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


def test_each_rank_gets_what_the_first_computes_or_the_error_that_it_raises(group: Group) -> None:
    expected = {"value": "of rank 0", "error": "--precision: refused by rank 0"}
    assert group.found("answers of the first") == [expected] * group.size


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


def test_validation_score_over_ranks_equals_the_score_of_a_single_process(group: Group) -> None:
    expected = alone("validation")
    assert max(expected) > 10
    for found in group.found("validation"):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_losses_over_a_pool_split_between_ranks_equal_those_of_a_single_process(group: Group) -> None:
    ranks = group.found("losses")
    for loss, (value, gradient) in alone("losses").items():
        for rank in ranks:
            torch.testing.assert_close(rank[loss][0], value)
        torch.testing.assert_close(torch.cat([rank[loss][1] for rank in ranks], dim=1), gradient)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("method", ALL)
def test_each_rank_gets_the_loss_and_gradient_of_a_single_process(group: Group, method: str, batch: str) -> None:
    expected = alone(batch)[method]
    all_lead = {"softtopk", "ngame"}  # both keys are in the top 5, and the positives lead by the margin
    assert expected[1].any() or (method in all_lead and batch == "two queries, two labels")
    for found in group.found(batch):
        assert_same(found[method], expected)


@pytest.mark.parametrize(("size", "rows"), [(1, 5), (3, 0), (3, 8), (8, 5), (8, 1_000_003)])
def test_shares_of_the_ranks_cover_all_rows_and_differ_by_at_most_one_row(size: int, rows: int) -> None:
    bounds = [Ranks(rank, size).bounds(rows) for rank in range(size)]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == rows
    assert max(stop - start for start, stop in bounds) - min(stop - start for start, stop in bounds) <= 1
    assert Ranks(0, size).bounds(rows, size - 1) == bounds[-1]


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


if __name__ == "__main__":
    work(Path(sys.argv[1]))
