"""The watchdog's times, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from server.workers.watchdog import Watchdog


class Clock:
    """Stands in for the event loop's clock and timers; time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *args: object) -> Timer:
        return self.call_at(self.now + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., None], *args: object) -> Timer:
        timer = Timer(when, partial(callback, *args))
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self._timers if t.when <= end and not t.cancelled]:
            timer = min(due, key=lambda t: t.when)
            self._timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = end

    def oversleep(self, seconds: float) -> None:
        """Let time pass in which the loop does not run, as when the whole process is stopped."""
        self.now += seconds


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Made:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.fired: list[float] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self.clock)
        self.dog = Watchdog(lambda: self.fired.append(self.clock.now - 100))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_it_fires_once_after_the_time_of_silence(made: Made) -> None:
    made.dog.watch(8)
    made.clock.advance(7.9)
    assert made.fired == []
    made.clock.advance(100)
    assert made.fired == [8]


def test_a_sign_of_life_puts_it_off(made: Made) -> None:
    made.dog.watch(8)
    for _ in range(10):
        made.clock.advance(5)
        made.dog.feed()
    assert made.fired == []
    made.clock.advance(20)
    assert made.fired == [58]


def test_a_sign_of_life_between_the_looks_counts(made: Made) -> None:
    made.dog.watch(8)
    made.clock.advance(7)  # the first look was at 6
    made.dog.feed()
    made.clock.advance(7.9)
    assert made.fired == []
    made.clock.advance(0.2)
    assert made.fired == [15]


def test_after_being_held_up_itself_it_gives_a_second_chance(made: Made) -> None:
    made.dog.watch(8)
    made.clock.oversleep(1000)
    made.clock.advance(0)  # the timer is long due, what the worker sent is not read yet
    assert made.fired == []
    made.dog.feed()
    made.clock.advance(7)
    assert made.fired == []


def test_stopped_it_stays_silent(made: Made) -> None:
    made.dog.watch(8)
    made.dog.stop()
    made.clock.advance(100)
    assert made.fired == []


def test_watching_anew_replaces_the_time(made: Made) -> None:
    made.dog.watch(8)
    made.clock.advance(5)
    made.dog.watch(100)
    made.clock.advance(99)
    assert made.fired == []
    made.clock.advance(2)
    assert made.fired == [105]
