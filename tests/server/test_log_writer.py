"""The log's writer against pipes that nobody reads, that break, and that flow again."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from server import log_writer
from server.log_writer import PatientHandler
from server.logs import JsonFormatter, TextFormatter

LINE = "x" * 1000


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("a", logging.INFO, __file__, 1, "%s", (message,), None)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for end in (read, write):
        os.close(end)


def handler(number: int, most_lines: int = 100) -> PatientHandler:
    made = PatientHandler(number, most_lines)
    made.setFormatter(logging.Formatter("%(message)s"))
    return made


def all_of(read: int, patient: PatientHandler, data: bytes = b"") -> list[str]:
    """Read what comes until the handler has closed."""
    closing = threading.Thread(target=patient.close)
    closing.start()
    while closing.is_alive() or not data.endswith(b"end\n"):
        data += os.read(read, 65536)
        if data.endswith(b"end\n"):
            closing.join()
    return data.decode().splitlines()


def test_lines_come_in_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    patient = handler(write, 10_000)
    for number in range(1000):
        patient.handle(record(f"{number}"))
    patient.handle(record("end"))
    assert all_of(read, patient) == [*map(str, range(1000)), "end"]


@pytest.mark.parametrize("blocking", [True, False])
def test_nobody_waits_for_a_reader_who_pauses_and_what_was_dropped_is_told(
    pipe: tuple[int, int], blocking: bool
) -> None:
    read, write = pipe
    os.set_blocking(write, blocking)
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    patient = handler(write)
    for number in range(1000):
        patient.handle(record(f"{number} {LINE}"))
    received = b""
    while patient._lines.qsize() > 50:
        received += os.read(read, 4096)  # until there is room again
    patient.handle(record("end"))
    *lines, end = all_of(read, patient, received)
    expected = lost = 0
    for line in lines:
        word = line.split()[0]
        if line.endswith(LINE):
            assert int(word) == expected
            expected += 1
        else:
            assert line == f"{word} lines of the log were dropped here"
            expected += int(word)
            lost += int(word)
    assert (expected, end) == (1000, "end")
    assert lost > 500


def test_a_reader_who_has_gone_is_no_failure_and_the_end_is_in_time(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.1)
    read, write = pipe
    gone, broken = os.pipe()
    os.close(gone)
    try:
        patient = handler(broken)
        for _ in range(500):
            patient.handle(record(LINE))
        patient.close()
    finally:
        os.close(broken)
    stuck = handler(write)
    for _ in range(500):
        stuck.handle(record(LINE))
    stuck.close()  # though nobody has read
    while stuck._lines.qsize():  # or its thread would write to whatever gets the pipe's number next
        assert os.read(read, 1001) == f"{LINE}\n".encode()


def test_lines_that_a_full_disk_refused_are_told_once_it_takes_some(pipe: tuple[int, int]) -> None:
    read, write = pipe
    full = os.open("/dev/full", os.O_WRONLY)
    shared = os.dup(full)
    try:
        patient = handler(shared)
        for _ in range(20):
            patient.handle(record(LINE))
        while patient._lines.qsize() or patient._dropped + patient._refused - patient._refused_before < 20:
            threading.Event().wait(0.01)  # for the thread to have tried
        os.dup2(write, shared)
        patient.handle(record("end"))
        assert all_of(read, patient) == ["20 lines of the log were dropped here", "end"]
    finally:
        os.close(full)
        os.close(shared)


@pytest.mark.parametrize("form", [TextFormatter(), JsonFormatter()])
def test_text_that_is_no_unicode_is_written(pipe: tuple[int, int], form: logging.Formatter) -> None:
    read, write = pipe
    patient = handler(write)
    patient.setFormatter(form)
    patient.handle(record("a\udcff"))
    patient.close()
    assert os.read(read, 65536).endswith(b"\n")
