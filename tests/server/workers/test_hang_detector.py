"""Which time counts when, on a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from server.workers.hang_detector import HangDetector
from server.workers.timeouts import Timeouts
from tests.server.workers.test_watchdog import Clock

TIMES = Timeouts(
    load_s=500,
    heartbeat_s=1e6,
    stall_s=5,
    abort_grace_s=3,
    start_s=1e6,
    prefill_s=60,
    prefill_s_per_token=0.1,
)


class Made:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.hangs: list[tuple[float, str]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self.clock)
        self.detector = HangDetector(
            TIMES, lambda what: self.hangs.append((round(self.clock.now - 100, 3), what))
        )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_a_prompt_has_its_time_and_then_each_text_its_own(made: Made) -> None:
    made.detector.loaded()
    made.detector.run_begins(1000)  # 60 s and 100 s for the tokens
    made.clock.advance(159)
    assert made.hangs == []
    made.detector.decoded()
    made.clock.advance(4.9)
    made.detector.decoded()
    made.clock.advance(4.9)
    assert made.hangs == []
    made.clock.advance(0.2)
    assert [at for at, _ in made.hangs] == [168.9]


def test_the_next_prompt_has_the_long_time_again(made: Made) -> None:
    made.detector.loaded()
    made.detector.run_begins(0)
    made.detector.decoded()
    made.detector.run_ends()
    made.detector.run_begins(0)
    made.clock.advance(59)
    assert made.hangs == []


def test_a_prefill_that_is_reported_has_time_for_what_is_left(made: Made) -> None:
    made.detector.loaded()
    made.detector.run_begins(1000)
    made.detector.prefill(10)
    made.clock.advance(61.1)
    assert [at for at, _ in made.hangs] == [61]


def test_once_prefill_is_through_the_first_token_must_come_soon(made: Made) -> None:
    made.detector.loaded()
    made.detector.run_begins(1000)
    made.detector.prefill(0)
    made.clock.advance(5.1)
    assert [at for at, _ in made.hangs] == [5]


def test_a_load_has_its_time_and_an_end_its_grace(made: Made) -> None:
    made.clock.advance(501)
    assert made.hangs == [(500, "did not load the model within 500 s (RKSERVE_LOAD_TIMEOUT_S allows more)")]
    made.detector.loaded()
    made.detector.must_end("did not end")
    made.clock.advance(2.9)
    made.detector.ended()
    made.clock.advance(10)
    assert len(made.hangs) == 1
    made.detector.must_end("did not end")
    made.clock.advance(3.1)
    assert made.hangs[1][1] == "did not end"


def test_stopped_it_watches_nothing(made: Made) -> None:
    made.detector.run_begins(0)
    made.detector.must_end("did not end")
    made.detector.stop()
    made.clock.advance(1e7)
    assert made.hangs == []
