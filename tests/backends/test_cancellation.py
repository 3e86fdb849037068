"""The cancel switch: its listener is called once, however setting and listening race."""

from __future__ import annotations

import threading

import pytest

from backends.engine import Cancellation


def test_a_listener_is_called_once_when_it_is_set() -> None:
    calls: list[str] = []
    cancelled = Cancellation()
    cancelled.listen(lambda: calls.append("a"))
    assert calls == []
    cancelled.set()
    cancelled.set()
    assert calls == ["a"]
    assert cancelled.is_set()


def test_who_listens_too_late_is_called_at_once() -> None:
    calls: list[str] = []
    cancelled = Cancellation()
    cancelled.set()
    cancelled.listen(lambda: calls.append("late"))
    assert calls == ["late"]


def test_who_listens_no_more_is_not_called() -> None:
    cancelled = Cancellation()
    cancelled.listen(lambda: pytest.fail("nobody listens"))
    cancelled.listen(None)
    cancelled.set()


def test_setting_and_listening_at_the_same_time() -> None:
    for _ in range(200):
        calls: list[int] = []
        cancelled = Cancellation()
        setter = threading.Thread(target=cancelled.set)
        setter.start()
        cancelled.listen(lambda calls=calls: calls.append(1))  # type: ignore[misc]  # mypy cannot infer it
        setter.join()
        assert calls == [1]
