"""The simulated fleet of `benchmarks.fleet`, against closed forms and against the rules of the service."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import simpy

from benchmarks.fleet import __main__ as command
from benchmarks.fleet import capacity
from benchmarks.fleet.constants import (
    Changes,
    Compute,
    DeploymentCosts,
    Drift,
    Http,
    IndexCost,
    Indexes,
    Refused,
    Step,
    Swap,
    ThreadCost,
)
from benchmarks.fleet.intervals import Interval
from benchmarks.fleet.measurements.service import Event, Figures, ServiceFigures, event_spans
from benchmarks.fleet.records import RECORDED, Recorded, read
from benchmarks.fleet.report import page
from benchmarks.fleet.simulation.cores import Cores, Thread
from benchmarks.fleet.simulation.fleet import Constants, Fleet, Shape, fleet_of, one_machine
from benchmarks.fleet.simulation.loads import Client, Outcome, distinct_queries, frequent_queries, poisson
from benchmarks.fleet.simulation.replica import LOST, OK, OVERLOADED, Engine, Replica, ReplicaSettings, Work
from benchmarks.fleet.validation import Pair, Spread, predict, validate
from loadtests.load import arrivals

NOTHING = ThreadCost.constant(0)
NO_COSTS = DeploymentCosts(
    loop=NOTHING,
    client=NOTHING,
    proxy=NOTHING,
    refused=Refused(loop_ms=0, pause_ms=0),
    wait_ms=[0, 0],
    busy_wait_ms=[0, 0],
    idle_cores=0,
)
FREE = Http(
    clients=32,
    reference_ms=80,
    alone_ms={1: 0},
    single=NO_COSTS,
    proxied=NO_COSTS,
    cached_loop=NOTHING,
    lock_share={1: 0},
    request_bytes=300,
    answer_bytes=1_000,
)
CHANGES = Changes(write_cpu_ms=10, follow_cpu_ms=1, log_bytes=2_000, compact_cpu_ms=1)
SWAP = Swap(
    reference_ms=80,
    bundle_mb=100,
    seconds=1,
    cpu_seconds=1,
    steps=[Step(cpu_ms=500, locked_ms=100)],
    shared_cpu_seconds=1,
    checksum_gb_per_second=1,
)
SERVICE_MS = 10.0


def compute_of(**changed: Any) -> Compute:
    """A predictor whose batches take ten milliseconds for each query."""
    sizes = (1, 32)
    fields: dict[str, Any] = {
        "encoder": "test",
        "memory": "test",
        "tokens": 16,
        "is_faster_together": False,
        "reference_ms": 80,
        "batch_ms": {size: SERVICE_MS * size for size in sizes},
        "query_ms": [SERVICE_MS],
        "search_ms": {size: 2.0 * size for size in sizes},
        "encode_ms": {8: 4, 16: 6, 32: 10},
        "slowdown": 1,
    }
    return Compute(**fields | changed)


# Each query is computed alone, so that the replica is a queue with one server.
ALONE = ReplicaSettings(encode_together=1, max_queue=100_000)


def run(settings: ReplicaSettings, compute: Compute, rate: float, seconds: float, seed: int = 1) -> Outcome:
    """The outcome of an open loop at one replica with one core."""
    fleet = one_machine(Constants(compute, FREE, SWAP), 1, settings, 1, seed)
    fleet.environment.process(fleet.client.open_loop(poisson(rate, seconds, fleet.random), distinct_queries()))
    fleet.environment.run()
    return fleet.client.outcome


def mean_ms(outcome: Outcome) -> float:
    return 1e3 * sum(outcome.seconds) / len(outcome.seconds)


class TestClosedForms:
    def test_constant_service_times_give_the_mean_latency_of_an_m_d_1_queue(self) -> None:
        outcome, load = run(ALONE, compute_of(), rate=60, seconds=200), 0.6

        assert mean_ms(outcome) == pytest.approx(SERVICE_MS * (1 + load / (2 * (1 - load))), rel=0.05)

    def test_exponential_service_times_give_the_mean_latency_of_an_m_m_1_queue(self) -> None:
        random = Random(1)
        exponential = [random.expovariate(1 / SERVICE_MS) for _ in range(4_000)]
        mean, load = sum(exponential) / len(exponential), 0.5
        compute = compute_of(batch_ms={1: mean}, query_ms=exponential, search_ms={1: 0})

        outcome = run(ALONE, compute, rate=1e3 * load / mean, seconds=200)

        assert mean_ms(outcome) == pytest.approx(mean / (1 - load), rel=0.1)

    def test_shared_cores_give_the_mean_latency_of_processor_sharing(self) -> None:
        environment, random = simpy.Environment(), Random(1)
        cores, load, seconds = Cores(environment, 1), 0.5, list[float]()

        def task(size: float) -> Any:
            start = environment.now
            yield cores.run(size)
            seconds.append(environment.now - start)

        def arrive() -> Any:
            for _ in range(8_000):
                yield environment.timeout(random.expovariate(load))
                environment.process(task(1.0))

        environment.process(arrive())
        environment.run()

        assert sum(seconds) / len(seconds) == pytest.approx(1 / (1 - load), rel=0.05)


class TestCores:
    def test_more_tasks_than_cores_run_at_equal_lower_speeds(self) -> None:
        environment = simpy.Environment()
        cores = Cores(environment, 2)
        ends = [cores.run(seconds) for seconds in (1.0, 1.0, 2.0)]

        environment.run(ends[0])
        assert environment.now == pytest.approx(1.5)
        environment.run(ends[2])
        assert environment.now == pytest.approx(2.5)

    def test_other_programs_take_their_share_of_the_cores(self) -> None:
        environment = simpy.Environment()
        cores = Cores(environment, 1.5)

        environment.run(cores.run(1.0) & cores.run(1.0))

        assert environment.now == pytest.approx(4 / 3)

    def test_a_second_busy_core_slows_both_down(self) -> None:
        environment = simpy.Environment()
        cores = Cores(environment, 2, slowdown=1.25)

        environment.run(cores.run(1.0) & cores.run(1.0))

        assert environment.now == pytest.approx(1.25)

    def test_a_task_has_the_speed_of_the_machine_at_its_start(self) -> None:
        environment = simpy.Environment()
        drift = Drift(step_seconds=2.0, slowness=[1.5, 0.5])
        cores = Cores(environment, 1, slowness=drift.at)

        ends = []
        for _ in range(4):
            environment.run(cores.run(1.0))
            ends.append(environment.now)

        assert ends == pytest.approx([1.5, 3.0, 3.5, 4.0])

    def test_a_thread_runs_its_tasks_one_after_the_other_and_is_faster_while_it_is_busy(self) -> None:
        environment = simpy.Environment()
        thread = Thread(environment, Cores(environment, 2))
        cost = ThreadCost(busy_ms=0.4, pause_ms=[0], woken_ms=[1])
        thread.run(cost)

        environment.run(thread.run(cost))

        assert environment.now == pytest.approx(0.0014)

    def test_a_stopped_task_leaves_its_core_to_the_others(self) -> None:
        environment = simpy.Environment()
        cores = Cores(environment, 1)
        stopped, other = cores.run(5.0), cores.run(1.0)
        environment.run(until=1)

        cores.stop(stopped)
        environment.run(other)

        assert environment.now == pytest.approx(1.5)
        assert not stopped.triggered

    def test_a_task_that_continues_another_one_wakes_up_no_thread(self) -> None:
        environment = simpy.Environment()
        thread = Thread(environment, Cores(environment, 2))
        cost = ThreadCost(busy_ms=0.4, pause_ms=[0], woken_ms=[1])
        environment.run(thread.run(cost))

        environment.run(thread.run(cost))

        assert environment.now == pytest.approx(0.0014)

    def test_a_task_costs_more_after_long_pauses(self) -> None:
        environment = simpy.Environment()
        thread = Thread(environment, Cores(environment, 2))
        cost = ThreadCost(busy_ms=0.4, pause_ms=[1, 9], woken_ms=[1, 3])

        def seconds(pause: float) -> float:
            for _ in range(1_000):
                environment.run(environment.timeout(pause))
                start = environment.now
                environment.run(thread.run(cost))
            return environment.now - start

        assert [seconds(pause) for pause in (0.0001, 0.005, 0.1)] == pytest.approx([0.001, 0.002, 0.003])


class TestReplica:
    def test_under_overload_the_excess_is_refused_and_the_latency_stays_bounded(self) -> None:
        settings = ReplicaSettings(encode_together=1, max_queue=16)

        outcome = run(settings, compute_of(), rate=200, seconds=20)

        assert outcome.refused == pytest.approx(0.5, abs=0.03)
        assert outcome.percentile_ms(100) <= SERVICE_MS * (settings.max_queue + 2)

    def test_every_request_is_answered_refused_or_lost_once(self) -> None:
        outcome = run(ReplicaSettings(max_queue=8), compute_of(), rate=300, seconds=20)

        assert outcome.sent == len(outcome.status)
        assert set(outcome.status) == {OK, OVERLOADED}

    def test_an_equal_seed_gives_an_equal_outcome(self) -> None:
        first, second, other = (run(ALONE, compute_of(), rate=60, seconds=10, seed=seed) for seed in (1, 1, 2))

        assert first == second
        assert first != other

    @pytest.mark.parametrize(("is_faster_together", "answered"), [(False, 4), (True, 2)])
    def test_a_free_thread_takes_its_share_of_the_queries_that_wait(
        self, is_faster_together: bool, answered: int
    ) -> None:
        environment, compute = simpy.Environment(), compute_of(is_faster_together=is_faster_together)
        replica = Replica(environment, Cores(environment, 2), work(compute), ReplicaSettings(threads=2))

        def arrive() -> Any:
            requests = [environment.process(replica.answer(query)) for query in range(2)]
            yield environment.timeout(0.005)  # both threads are busy until 10 ms
            return requests + [environment.process(replica.answer(query)) for query in range(2, 10)]

        requests: Any = environment.run(environment.process(arrive()))
        environment.run(until=0.031)

        # At 10 ms, one thread takes four of the eight queries that wait, and the other two of the remaining four. The
        # two are answered at 30 ms. If queries are faster together, the first thread takes all eight until 90 ms.
        assert sum(request.processed for request in requests) == answered

    def test_equal_queries_are_computed_once(self) -> None:
        environment = simpy.Environment()
        replica = Replica(environment, Cores(environment, 1), work(compute_of()), ReplicaSettings())

        environment.run(simpy.AllOf(environment, [environment.process(replica.answer(7)) for _ in range(9)]))

        assert environment.now == pytest.approx(SERVICE_MS / 1e3)

    def test_a_cached_answer_costs_no_computation_until_a_swap(self) -> None:
        environment = simpy.Environment()
        replica = Replica(environment, Cores(environment, 1), work(compute_of()), ReplicaSettings(cached_answers=5))
        replica.fill_cache()

        environment.run(environment.process(replica.answer(4)))
        assert environment.now == 0
        environment.run(environment.process(replica.open_version(1, [Step(cpu_ms=1_000, locked_ms=0)])))
        environment.run(environment.process(replica.answer(4)))
        assert environment.now == pytest.approx(1 + SERVICE_MS / 1e3)

    def test_an_answer_costs_the_event_loop_the_measured_time(self) -> None:
        """In a closed loop with one client, the thread sleeps before each request, and before each computed answer."""
        cached = ThreadCost(busy_ms=0.2, pause_ms=[0], woken_ms=[0.3])
        loop = ThreadCost(busy_ms=0.5, pause_ms=[0], woken_ms=[0.9])
        costs = NO_COSTS.model_copy(update={"loop": loop, "refused": Refused(loop_ms=0.4, pause_ms=1)})
        times = Work(compute_of(), FREE.model_copy(update={"cached_loop": cached}), costs, Random(1))

        def milliseconds(settings: ReplicaSettings, *before: int) -> float:
            environment = simpy.Environment()
            replica = Replica(environment, Cores(environment, 2), times, settings)
            replica.fill_cache()
            for query in before:
                environment.process(replica.answer(query))
            environment.run(until=0.005)
            environment.run(environment.process(replica.answer(0)))
            return 1e3 * environment.now - 5

        assert milliseconds(ReplicaSettings(cached_answers=1)) == pytest.approx(0.3)
        assert milliseconds(ReplicaSettings()) == pytest.approx(SERVICE_MS + 0.9)
        # One query is computed, and one waits.
        assert milliseconds(ReplicaSettings(max_queue=1), 1, 2) == pytest.approx(0.4)

    def test_a_refusal_costs_the_measured_time_after_the_pauses_of_its_measurement(self) -> None:
        cached = ThreadCost(busy_ms=0.2, pause_ms=[0, 2], woken_ms=[0.3, 0.5])
        costs = NO_COSTS.model_copy(update={"refused": Refused(loop_ms=0.6, pause_ms=1)})
        times = Work(compute_of(), FREE.model_copy(update={"cached_loop": cached}), costs, Random(1))

        assert times.read.after(1) + times.refuse.busy_ms == pytest.approx(0.6)
        assert times.read.after(2) + times.refuse.busy_ms == pytest.approx(0.7)

    def test_a_batch_waits_for_the_interpreter_lock_in_proportion_to_the_cpu_time_of_the_event_loop(self) -> None:
        cost = ThreadCost.constant(1)
        http = FREE.model_copy(update={"cached_loop": cost, "lock_share": {1: 0.25, 3: 0.75}})
        times = Work(compute_of(), http, NO_COSTS.model_copy(update={"loop": cost}), Random(1))
        environment = simpy.Environment()
        replica = Replica(environment, Cores(environment, 2, slowness=lambda _: 2.0), times, ReplicaSettings())

        first = environment.process(replica.answer(0))
        environment.run(until=0.010)
        others = [environment.process(replica.answer(query)) for query in (1, 2)]
        ends_ms = []
        for request in (first, *others):
            environment.run(request)
            ends_ms.append(1e3 * environment.now / 2)  # at the mean speed

        # At the mean speed, the event loop reads each request in 0.5 ms, and answers it in 0.5 ms. During the first
        # batch, it reads two requests. During the second batch, which has two queries, it answers the first request.
        batches_ms = SERVICE_MS + 0.25 * 1, 2 * SERVICE_MS + 0.5 * 0.5
        computed_ms = [0.5 + batches_ms[0], 0.5 + sum(batches_ms)]
        assert ends_ms == pytest.approx([computed_ms[0] + 0.5, computed_ms[1] + 0.5, computed_ms[1] + 1])

    @pytest.mark.parametrize(("share", "milliseconds"), [(0.5, 30), (3, 50)])
    def test_waits_for_the_interpreter_lock_overlap_with_waits_for_a_core(
        self, share: float, milliseconds: float
    ) -> None:
        http = FREE.model_copy(update={"cached_loop": ThreadCost.constant(20), "lock_share": {1: share}})
        environment = simpy.Environment()
        replica = Replica(environment, Cores(environment, 1), Work(compute_of(), http, NO_COSTS, Random(1)), ALONE)

        answer = environment.process(replica.answer(0))
        environment.run(until=0.012)
        environment.process(replica.answer(1))
        environment.run(answer)

        # The event loop reads each request in 10 ms. The computation of the first one begins at 10 ms. From 12 ms on,
        # it shares the core with the second request. So it waits 8 ms for the core, and ends at 28 ms. At a share of
        # 0.5, 5 ms for the lock are a part of these 8 ms, and the event loop is free at 30 ms. At a share of 3, the
        # 30 ms for the lock begin with these 8 ms.
        assert 1e3 * environment.now == pytest.approx(milliseconds)

    def test_an_ended_replica_leaves_its_core_to_the_others(self) -> None:
        environment = simpy.Environment()
        cores = Cores(environment, 1)
        ended, other = (Replica(environment, cores, work(compute_of()), ReplicaSettings()) for _ in range(2))
        environment.process(ended.answer(0))
        answered = environment.process(other.answer(1))
        environment.run(until=0.004)

        ended.stop(refuses_connections=True)
        environment.run(answered)

        assert environment.now == pytest.approx(0.012)

    def test_an_engine_delays_answers_without_using_a_core(self) -> None:
        environment, settings = simpy.Environment(), ReplicaSettings(threads=2, encode_together=1)
        members = work(compute_of(), Engine(median_ms=100, p99_ms=100))
        replica = Replica(environment, Cores(environment, 1), members, settings)

        environment.run(simpy.AllOf(environment, [environment.process(replica.answer(query)) for query in range(2)]))

        # Both calls run at the same time; the rest of both computations, 8 ms each, shares the core.
        assert environment.now == pytest.approx(0.116)

    @pytest.mark.parametrize(("queries", "seconds"), [(0, 0.1), (1, 0.5)])
    def test_a_version_opens_slowly_while_the_thread_is_busy(self, queries: int, seconds: float) -> None:
        environment, long = simpy.Environment(), compute_of(batch_ms={1: 10_000}, search_ms={1: 0})
        replica = Replica(environment, Cores(environment, 2), work(long), ReplicaSettings())
        for query in range(queries):
            environment.process(replica.answer(query))
        environment.run(until=0.001)

        environment.run(environment.process(replica.open_version(1, [Step(cpu_ms=10, locked_ms=0)] * 10)))

        # For 10 steps of 10 ms, a busy thread costs 4 times as long, and 20 ms each until the next step begins anyway.
        assert environment.now == pytest.approx(0.001 + seconds + queries * 10 * 0.02)

    def test_a_request_waits_while_a_step_keeps_the_interpreter_lock(self) -> None:
        environment = simpy.Environment()
        replica = Replica(environment, Cores(environment, 2), work(compute_of()), ReplicaSettings())
        environment.process(replica.open_version(1, [Step(cpu_ms=50, locked_ms=20)]))
        environment.run(until=0.035)

        environment.run(environment.process(replica.answer(0)))

        assert environment.now == pytest.approx(0.05 + SERVICE_MS / 1e3)


def test_the_use_without_requests_takes_its_share_of_the_cores() -> None:
    costs = NO_COSTS.model_copy(update={"idle_cores": 0.5})
    constants = Constants(compute_of(), FREE.model_copy(update={"single": costs}), SWAP)
    settings = ReplicaSettings()

    for fleet in (one_machine(constants, 1, settings, 1, seed=1), fleet_of(Shape(1, 1, settings), constants, seed=1)):
        assert statuses(fleet, 1) == [OK]
        assert mean_ms(fleet.client.outcome) == pytest.approx(2 * SERVICE_MS)


class TestBalancer:
    def test_a_request_to_an_ended_process_is_answered_by_another_replica(self) -> None:
        fleet = fleet_of(Shape(2, 1, ReplicaSettings()), Constants(compute_of(), FREE, SWAP), seed=1)
        fleet.balancer.replicas[0].stop(refuses_connections=True)

        assert statuses(fleet, 20) == [OK] * 20
        assert fleet.client.outcome.percentile_ms(100) < 500

    def test_a_request_to_a_machine_that_is_off_waits_for_the_connection_timeout(self) -> None:
        fleet = fleet_of(Shape(2, 1, ReplicaSettings()), Constants(compute_of(), FREE, SWAP), seed=1)
        fleet.balancer.replicas[0].stop(refuses_connections=False)

        assert statuses(fleet, 20) == [OK] * 20
        assert fleet.client.outcome.percentile_ms(100) >= 500

    def test_running_requests_of_a_lost_replica_go_to_another_one(self) -> None:
        fleet = fleet_of(Shape(2, 1, ReplicaSettings()), Constants(compute_of(), FREE, SWAP), seed=1)
        fleet.environment.process(stop_later(fleet, seconds=0.005))

        assert statuses(fleet, 2) == [OK] * 2

    def test_a_request_in_the_event_loop_of_a_lost_replica_is_lost(self) -> None:
        cost = ThreadCost.constant(20)
        single = NO_COSTS.model_copy(update={"loop": cost})
        http = FREE.model_copy(update={"single": single, "cached_loop": cost})
        fleet = fleet_of(Shape(1, 2, ReplicaSettings(encode_together=1)), Constants(compute_of(), http, SWAP), seed=1)
        fleet.environment.process(stop_later(fleet, seconds=0.015))

        # The thread computes the first query, and the event loop reads the second one.
        assert statuses(fleet, 2) == [LOST] * 2

    def test_without_replicas_all_requests_are_lost(self) -> None:
        fleet = fleet_of(Shape(2, 1, ReplicaSettings()), Constants(compute_of(), FREE, SWAP), seed=1)
        for replica in fleet.balancer.replicas:
            replica.stop(refuses_connections=True)

        assert statuses(fleet, 3) == [LOST] * 3

    def test_a_refused_request_is_tried_at_one_other_replica(self) -> None:
        settings = ReplicaSettings(encode_together=1, max_queue=1)
        fleet = fleet_of(Shape(2, 1, settings), Constants(compute_of(), FREE, SWAP), seed=1)

        # Each replica computes one query, and one query waits.
        assert sorted(statuses(fleet, 6)) == [OK] * 4 + [OVERLOADED] * 2


def work(compute: Compute, engine: Engine | None = None) -> Work:
    return Work(compute, FREE, NO_COSTS, Random(1), engine)


def statuses(fleet: Fleet, requests: int) -> list[int]:
    for query in range(requests):
        fleet.environment.process(fleet.client.request(query))
    fleet.environment.run()
    return fleet.client.outcome.status


def stop_later(fleet: Fleet, seconds: float) -> Any:
    yield fleet.environment.timeout(seconds)
    fleet.balancer.replicas[0].stop(refuses_connections=True)


class TestLoads:
    def test_a_closed_loop_keeps_one_request_a_client_in_flight(self) -> None:
        environment = simpy.Environment()
        running, most = 0, 0

        def send(query: int) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            yield environment.timeout(0.1)
            running -= 1
            return OK

        client = Client(environment, send, NO_COSTS, Random(1))
        environment.process(client.closed_loop(3, 10, distinct_queries()))
        environment.run()

        assert most == 3
        assert client.outcome.answered_per_second(0, 10) == pytest.approx(30, rel=0.02)

    def test_waits_change_the_latency_and_delay_no_request(self) -> None:
        environment, costs = simpy.Environment(), NO_COSTS.model_copy(update={"wait_ms": [-5, 95]})

        def send(query: int) -> Any:
            yield environment.timeout(0.01)
            return OK

        client = Client(environment, send, costs, Random(1))
        environment.process(client.closed_loop(1, 10, distinct_queries()))
        environment.run()

        assert environment.now == pytest.approx(10, abs=0.011)
        assert mean_ms(client.outcome) == pytest.approx(10 + 45, rel=0.1)
        assert client.outcome.percentile_ms(0) >= 5

    def test_answers_wait_longer_if_a_core_is_used_when_they_are_due(self) -> None:
        environment, costs = simpy.Environment(), NO_COSTS.model_copy(update={"busy_wait_ms": [5, 5]})
        cores = Cores(environment, 2)

        def send(query: int) -> Any:
            yield cores.run(0.01)
            return OK

        client = Client(environment, send, costs, Random(1), cores)
        environment.process(client.open_loop([0, 0.02, 0.025], distinct_queries()))
        environment.run()

        assert [1e3 * each for each in client.outcome.seconds] == pytest.approx([10, 10, 15])

    def test_frequent_queries_follow_zipfs_law(self) -> None:
        queries = frequent_queries(100, seed=1)
        drawn = [queries() for _ in range(20_000)]

        assert drawn.count(0) / drawn.count(9) == pytest.approx(10, rel=0.25)
        assert max(drawn) < 100


class TestEvents:
    """Figures after an event. 80 requests arrive in each second, and each of them takes ten milliseconds."""

    def test_a_swap_and_a_killed_replica_delay_requests_and_lose_none(self) -> None:
        none, swap = self.predicted("swap", swap_steps=[]), self.predicted("swap")
        killed = self.predicted("one replica is killed")
        assert swap.p99 > 1.15 * none.p99
        assert killed.p50 > 1.2 * none.p50
        assert (swap.lost, killed.lost) == (0, 0)

    def test_the_requests_after_each_swap_count(self) -> None:
        spans = event_spans("swap", seconds=20)
        due = arrivals(80, 20, seed=1)
        counted = sum(any(start <= each < end for start, end in spans) for each in due)

        seconds = sum(end - start for start, end in spans)
        assert self.predicted("swap").answered == pytest.approx(counted / seconds)
        assert counted < len(due)

    def predicted(self, event: Event, swap_steps: Sequence[Step] = (Step(cpu_ms=10, locked_ms=0),) * 100) -> Figures:
        fleet = one_machine(Constants(compute_of(), FREE, SWAP), 2, ALONE, 2, seed=1)
        return predict(measured(event=event), fleet, 20, swap_steps)


def worked(*compute_ms: float, batch: float = 1) -> list[Interval]:
    """The work of 80 queries in each second, for which a query took so much CPU time."""
    return [
        Interval(end=end, compute_seconds=80 * each / 1e3, queries=80, batches=80 / batch)
        for end, each in enumerate(compute_ms, start=1)
    ]


def measured(**changed: Any) -> Figures:
    """Figures of a load of 80 requests a second."""
    fields: dict[str, Any] = {
        "load": "80%",
        "reference_ms": 80,
        "compute_ms": 10,
        "intervals": worked(10),
        "stolen": 0,
        "rate": 80,
        "seed": 1,
        "max_queue": 256,
        "answered": 80,
        "p50": 12,
        "p99": 20,
        "refused": 0,
    }
    return Figures(**fields | changed)


def validated(*figures: Figures, **changed: Any) -> list[Pair]:
    service = ServiceFigures(replicas=1, cores=2, seconds=5, figures=list(figures))
    return validate([service], Constants(compute_of(**changed), FREE, SWAP)).pairs


def test_disturbed_measurements_of_a_load_count_only_if_all_are_disturbed() -> None:
    disturbed = [measured(p50=100, stolen=0.05), measured(p50=200, stolen=0.2)]
    others = [measured(p50=10), measured(p50=12, stolen=0.01)]

    pairs = validated(*others, *disturbed, *(each.model_copy(update={"load": "60%"}) for each in disturbed))

    assert {pair.load: pair.measured.median for pair in pairs if pair.figure == "p50"} == {"80%": 11, "60%": 100}


def test_a_load_is_simulated_at_the_speed_at_which_a_query_took_the_measured_cpu_time() -> None:
    """The speed before and after the load predicts only the CPU time of a query."""

    def predicted(**changed: Any) -> dict[str, float]:
        return {pair.figure: pair.predicted.median for pair in validated(measured(rate=5, **changed))}

    equal, slower, earlier = predicted(), predicted(intervals=worked(20)), predicted(reference_ms=160)

    assert (equal["compute_ms"], slower["compute_ms"], earlier["compute_ms"]) == pytest.approx((10, 10, 20))
    assert (equal["p50"], slower["p50"], earlier["p50"]) == pytest.approx((10, 20, 10), rel=0.02)


def test_the_machine_was_slower_if_larger_batches_took_the_same_cpu_time_for_a_query() -> None:
    def p50(batch: float) -> float:
        pairs = validated(measured(intervals=worked(8, batch=batch)), batch_ms={1: 10, 32: 160})
        return next(pair.predicted.median for pair in pairs if pair.figure == "p50")

    assert p50(16) > 1.5 * p50(1)


def test_a_load_is_simulated_at_the_speed_of_each_interval() -> None:
    """Some slow seconds make longer queues than seconds of the same mean speed."""
    p99 = [
        next(pair.predicted.median for pair in validated(measured(intervals=worked(*each))) if pair.figure == "p99")
        for each in ([10] * 5, [7, 13, 7, 13, 10])
    ]

    assert p99[1] > 1.5 * p99[0]


def test_intervals_with_few_batches_have_one_speed() -> None:
    """The CPU time of a few batches is too inexact to show the speed of an interval."""
    equal, changing = (
        {pair.figure: pair.predicted.median for pair in validated(measured(intervals=worked(*each, batch=4)))}
        for each in ([10] * 5, [7, 13, 7, 13, 10])
    )

    assert changing == pytest.approx(equal)


def test_measurements_at_another_speed_of_the_machine_are_scaled() -> None:
    compute, cost = compute_of(), ThreadCost(busy_ms=1, pause_ms=[1, 2], woken_ms=[2, 3])
    http = FREE.model_copy(update={"single": NO_COSTS.model_copy(update={"loop": cost})})

    assert work(compute.at(100, 1)).batch_seconds(range(8)) == pytest.approx(
        1.25 * work(compute).batch_seconds(range(8))
    )
    assert http.at(40).single.loop == ThreadCost(busy_ms=0.5, pause_ms=[1, 2], woken_ms=[1, 1.5])
    assert compute.at(80, 1) == compute
    # The steps of the swap have half of its CPU time. The rest is spread over them.
    assert SWAP.steps_at(80) == [Step(cpu_ms=1_000, locked_ms=200)]
    assert SWAP.steps_at(20) == [Step(cpu_ms=250, locked_ms=50)]


class TestCapacity:
    def test_longer_queries_cost_their_longer_encoding(self) -> None:
        loop = ThreadCost(busy_ms=1, pause_ms=[1, 2], woken_ms=[2, 3])
        compute, single = compute_of(), NO_COSTS.model_copy(update={"loop": loop})
        http = FREE.model_copy(update={"single": single})

        assert capacity.query_ms(compute, http, 16) == pytest.approx(11)
        assert capacity.query_ms(compute, http, 32) == pytest.approx(15)

    def test_replicas_cover_the_rate_at_the_utilisation_with_spares(self) -> None:
        assert capacity.replicas(rate=1_000, milliseconds=6, cores_each=4, utilisation=0.5, spare=1) == 4

    def test_most_keys_is_the_inverse_of_the_size_of_two_bundles(self) -> None:
        cost = IndexCost(index="SQ8", keys=10, bytes_per_key=400, recall=1, search_ms=1, build_cpu_seconds=1, peak_mb=1)
        indexes = Indexes(dim=384, labels_per_instance=3, bytes_per_instance=100, costs=[cost])

        assert 2 * capacity.bundle_bytes(capacity.most_keys(1e9, cost, indexes), cost, indexes) == pytest.approx(0.8e9)

    def test_each_replica_applies_each_live_write(self) -> None:
        cost = capacity.live_writes(rate=10, members=100, changes=CHANGES)

        assert cost.cores == pytest.approx(10 * (10 + 99) / 1e3)
        assert cost.full_after_hours == pytest.approx(50_000 / 10 / 3600)


class TestPage:
    def test_an_error_is_relative_to_the_measured_figure(self) -> None:
        pair = Pair(
            replicas=1, load="60%", figure="p50", measured=Spread.of([9, 10, 30]), predicted=Spread.of([11, 12, 13])
        )

        assert pair.error == pytest.approx(0.2)

    def test_docs_have_the_page_of_the_recorded_figures(self, pytestconfig: pytest.Config) -> None:
        assert (pytestconfig.rootpath / "docs" / "scaling.md").read_text(encoding="utf-8") == page()

    def test_the_records_are_of_one_machine(self) -> None:
        names = {record.machine for record in (read(Recorded, path.stem) for path in RECORDED.glob("*.json"))}

        assert len(names) == 1

    def test_a_missing_store_is_one_message(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["http", "--store", "/nowhere"]) == 2

        message = capsys.readouterr().err
        assert message.startswith("python -m benchmarks.fleet: /nowhere")
        assert message.count("\n") == 1


def test_the_time_of_a_batch_follows_its_size_and_its_queries() -> None:
    batches = {1: 10, 2: 18, 32: 200}
    compute = compute_of(batch_ms=batches, query_ms=[8, 10, 12], search_ms=dict.fromkeys(batches, 0))
    times = Work(compute, FREE.model_copy(update={"alone_ms": {10: 11, 20: 12}}), NO_COSTS, Random(1))

    assert times.batch_seconds([1, 4]) == pytest.approx(0.018)
    assert times.batch_seconds([0, 1]) == pytest.approx(0.016)
    assert times.batch_seconds(range(64)) == pytest.approx(0.4, rel=0.01)
    assert [times.pause_factor(seconds) for seconds in (0, 0.01, 0.015, 9)] == pytest.approx([1, 1.1, 1.15, 1.2])
