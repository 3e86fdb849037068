"""The order of jobs: by hand, and for any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.scheduling.fair_queue import MAX_PASSES, FairQueue, Fit, QueueFull

Fits = Callable[[str], Fit]


def ready(_: str) -> Fit:
    return Fit.READY


def loaded(*models: str) -> Fits:
    """Jobs are named `model-client-number`; those of other models need a swap."""
    return lambda job: Fit.READY if job.split("-")[0] in models else Fit.SWAP


def one_npu(granted: str, waiting: str) -> bool:
    return True


def apart(granted: str, waiting: str) -> bool:
    return False


def queue(*jobs: str, size: int = 100, per_client: int = 0) -> FairQueue[str]:
    made: FairQueue[str] = FairQueue(size, per_client)
    for job in jobs:
        made.push(job, job.split("-")[1], "npu")
    return made


def drain(jobs: FairQueue[str], fit: Fits = ready) -> list[str]:
    taken = []
    while (job := jobs.pop(fit, one_npu)) is not None:
        taken.append(job)
    return taken


def test_one_client_is_served_in_order() -> None:
    assert drain(queue("m-a-1", "m-a-2", "m-a-3")) == ["m-a-1", "m-a-2", "m-a-3"]


def test_clients_take_turns() -> None:
    jobs = queue("m-a-1", "m-a-2", "m-a-3", "m-b-1", "m-c-1", "m-b-2")
    assert drain(jobs) == ["m-a-1", "m-b-1", "m-c-1", "m-a-2", "m-b-2", "m-a-3"]


def test_a_single_request_waits_for_one_of_thirty() -> None:
    jobs = queue(*(f"m-a-{number}" for number in range(30)))
    assert jobs.pop(ready, one_npu) == "m-a-0"
    jobs.push("m-b-0", "b", "npu")
    assert [jobs.pop(ready, one_npu) for _ in range(2)] == ["m-a-1", "m-b-0"]


def test_a_client_that_comes_back_goes_behind_those_who_wait() -> None:
    jobs = queue("m-a-1", "m-b-1")
    assert jobs.pop(ready, one_npu) == "m-a-1"
    jobs.push("m-a-2", "a", "npu")
    assert drain(jobs) == ["m-b-1", "m-a-2"]


def test_the_queue_is_bounded() -> None:
    jobs = queue("m-a-1", "m-b-1", size=2)
    with pytest.raises(QueueFull) as full:
        jobs.push("m-c-1", "c", "npu")
    assert (full.value.limit, full.value.of_client) == (2, False)
    assert len(jobs) == 2
    jobs.push("m-own-1", "own", "npu", bounded=False)
    assert len(jobs) == 3


def test_each_client_is_bounded() -> None:
    jobs = queue("m-a-1", "m-a-2", "m-b-1", per_client=2)
    with pytest.raises(QueueFull) as full:
        jobs.push("m-a-3", "a", "npu")
    assert (full.value.limit, full.value.of_client) == (2, True)
    jobs.push("m-b-2", "b", "npu")
    jobs.remove("m-a-1")
    jobs.push("m-a-3", "a", "npu")
    assert drain(jobs) == ["m-a-2", "m-b-1", "m-a-3", "m-b-2"]


def test_leaving_does_not_cost_the_others_a_turn() -> None:
    jobs = queue("m-a-1", "m-b-1", "m-a-2", "m-c-1")
    assert jobs.remove("m-a-1")
    assert not jobs.remove("m-a-1")
    assert "m-a-1" not in jobs
    assert drain(jobs) == ["m-a-2", "m-b-1", "m-c-1"]


def test_a_loaded_model_goes_before_a_swap() -> None:
    jobs = queue("x-a-1", "m-b-1", "m-c-1")
    assert drain(jobs, loaded("m")) == ["m-b-1", "m-c-1", "x-a-1"]


def test_of_one_client_too() -> None:
    jobs = queue("x-a-1", "m-a-1", "x-a-2", "m-a-2")
    assert drain(jobs, loaded("m")) == ["m-a-1", "m-a-2", "x-a-1", "x-a-2"]


def test_nobody_is_passed_over_more_than_a_few_times() -> None:
    jobs = queue("x-a-1", *(f"m-b-{number}" for number in range(10)))
    order = drain(jobs, loaded("m"))
    assert order.index("x-a-1") == MAX_PASSES == 4


def test_a_starved_job_holds_what_would_pass_it_again_even_while_it_cannot_start() -> None:
    jobs = queue("x-a-1", *(f"m-b-{number}" for number in range(6)))
    for _ in range(MAX_PASSES):
        assert jobs.pop(loaded("m"), one_npu) is not None

    def busy(job: str) -> Fit:
        return Fit.READY if job.startswith("m") else Fit.BLOCKED

    assert jobs.pop(busy, one_npu) is None
    assert jobs.pop(loaded("m"), one_npu) == "x-a-1"


def test_jobs_that_do_not_hinder_one_another_do_not_pass_one_another() -> None:
    jobs: FairQueue[str] = FairQueue(100)
    jobs.push("x-a-1", "a", "npu")
    for number in range(10):
        jobs.push(f"m-b-{number}", "b", "cpu m")
    busy = {"x": Fit.BLOCKED, "m": Fit.READY}
    for number in range(10):
        assert jobs.pop(lambda job: busy[job[0]], apart) == f"m-b-{number}"


def test_a_swap_is_not_due_for_jobs_that_do_not_hinder_it() -> None:
    jobs: FairQueue[str] = FairQueue(100)
    jobs.push("x-a-1", "a", "npu")
    for number in range(3 * MAX_PASSES):
        jobs.push(f"m-b-{number}", "b", "cpu m")
    for number in range(3 * MAX_PASSES):
        assert jobs.pop(loaded("m"), apart) == f"m-b-{number}"
    assert jobs.pop(loaded("m"), apart) == "x-a-1"


def test_lanes_are_merged_by_arrival() -> None:
    jobs: FairQueue[str] = FairQueue(100)
    for client, lane in [("a", "two"), ("b", "one"), ("c", "two"), ("d", "one"), ("e", "one"), ("f", "two")]:
        jobs.push(f"m-{client}-1", client, lane)
    assert drain(jobs) == [f"m-{client}-1" for client in "abcdef"]


def test_turns_in_one_lane_do_not_count_in_another() -> None:
    jobs: FairQueue[str] = FairQueue(100)
    jobs.push("m-a-1", "a", "npu")
    jobs.push("m-a-2", "a", "npu")
    jobs.push("m-b-1", "b", "npu")
    jobs.push("c-a-1", "a", "cpu c")

    def npu_busy(job: str) -> Fit:
        return Fit.BLOCKED if job.startswith("m") else Fit.READY

    assert jobs.pop(npu_busy, apart) == "c-a-1"
    assert drain(jobs) == ["m-a-1", "m-b-1", "m-a-2"]


def test_what_is_blocked_stays() -> None:
    jobs = queue("m-a-1")
    assert jobs.pop(lambda _: Fit.BLOCKED, one_npu) is None
    assert list(jobs) == ["m-a-1"]


def test_positions_count_those_before_in_the_lane() -> None:
    jobs = queue("m-a-1", "m-a-2", "m-b-1")
    jobs.push("c-z-1", "z", "cpu c")
    assert dict(jobs.positions()) == {"m-a-1": 0, "m-b-1": 1, "m-a-2": 2, "c-z-1": 0}


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("mxy"), st.sampled_from("abc")),  # a push
        st.just("pop"),
        st.just("pop while busy"),
        st.just("leave"),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(EVENTS, st.integers(min_value=1, max_value=12), st.integers(min_value=0, max_value=5))
def test_any_history(events: list[str | tuple[str, str]], size: int, per_client: int) -> None:
    jobs: FairQueue[str] = FairQueue(size, per_client)
    waiting: list[str] = []  # in order of arrival
    overtaken: Counter[str] = Counter()
    on_npu = "m"
    number = 0

    def took(job: str) -> None:
        nonlocal on_npu
        model, client, _ = job.split("-")
        # What came earlier from the same client was overtaken because of the loaded model, or not at all.
        for other in waiting[: waiting.index(job)]:
            if other.split("-")[1] == client:
                overtaken[other] += 1
                assert other.split("-")[0] != model
                assert overtaken[other] <= MAX_PASSES
        waiting.remove(job)
        on_npu = model

    for event in events:
        if isinstance(event, tuple):
            model, client = event
            job = f"{model}-{client}-{number}"
            number += 1
            mine = sum(other.split("-")[1] == client for other in waiting)
            if len(waiting) >= size or (per_client and mine >= per_client):
                with pytest.raises(QueueFull):
                    jobs.push(job, client, "npu")
            else:
                jobs.push(job, client, "npu")
                waiting.append(job)
        elif event == "pop":
            taken = jobs.pop(loaded(on_npu), one_npu)
            assert (taken is None) == (not waiting)
            if taken is not None:
                took(taken)
        elif event == "pop while busy":
            assert jobs.pop(lambda _: Fit.BLOCKED, one_npu) is None
        elif waiting:
            leaving = waiting.pop(len(waiting) // 2)
            assert jobs.remove(leaving)
        assert len(jobs) == len(waiting)
        assert sorted(position for _, position in jobs.positions()) == list(range(len(waiting)))
    while (job_taken := jobs.pop(loaded(on_npu), one_npu)) is not None:
        took(job_taken)
    assert not waiting


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("mxyz"), st.sampled_from("abcd")), min_size=1, max_size=40))
def test_no_job_waits_longer_than_its_turn_and_its_passes_allow(arrivals: list[tuple[str, str]]) -> None:
    """New jobs for the loaded model keep coming from everyone: a job has its turn within a known time.

    Whoever is first in line is served after MAX_PASSES others at the latest. A job gets there when those
    before it are served, and falls back behind the other clients when a later job of its own client passes
    it, which happens MAX_PASSES times at most.
    """
    clients = 4
    jobs: FairQueue[str] = FairQueue(10_000)
    names = [f"{model}-{client}-{number}" for number, (model, client) in enumerate(arrivals)]
    for name in names:
        jobs.push(name, name.split("-")[1], "npu")
    bound = {
        job: (place + 1 + MAX_PASSES * (clients - 1)) * (MAX_PASSES + 1) for job, place in jobs.positions()
    }
    pending = set(names)
    on_npu = "m"
    turn = 0
    while pending:
        taken = jobs.pop(loaded(on_npu), one_npu)
        assert taken is not None
        turn += 1
        on_npu = taken.split("-")[0]
        if taken in pending:
            pending.discard(taken)
            assert turn <= bound[taken]
        if turn <= 200:
            for client in "abcd":
                jobs.push(f"{on_npu}-{client}-new{turn}", client, "npu")


def users_of_a(*names: str, per_client: int = 0) -> FairQueue[str]:
    """Jobs `m-a-USER-NUMBER` of one client's users, then one of client b."""
    made: FairQueue[str] = FairQueue(100, per_client)
    for number, name in enumerate(names):
        made.push(f"m-a-{name}-{number}", "a", "npu", user=name)
    made.push("m-b", "b", "npu")
    return made


def test_a_client_does_not_get_more_turns_by_naming_more_users() -> None:
    jobs = users_of_a(*(f"u{number}" for number in range(30)))
    assert drain(jobs)[:3] == ["m-a-u0-0", "m-b", "m-a-u1-1"]


def test_within_a_client_its_users_take_turns() -> None:
    jobs = users_of_a("x", "x", "x", "y", "x", "z")
    expected = [job for job, _ in jobs.positions()]
    assert expected == ["m-a-x-0", "m-b", "m-a-y-3", "m-a-z-5", "m-a-x-1", "m-a-x-2", "m-a-x-4"]
    assert drain(jobs) == expected


def test_the_bound_of_a_client_counts_all_its_users() -> None:
    jobs = users_of_a("x", "y", per_client=2)
    with pytest.raises(QueueFull) as caught:
        jobs.push("m-a-z-2", "a", "npu", user="z")
    assert (caught.value.limit, caught.value.of_client) == (2, True)
    jobs.push("m-b-2", "b", "npu")
