"""The log's two forms: one record a line whatever the message holds."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from server.logs import REQUEST_ID, JsonFormatter, TextFormatter


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, args, None)


def test_a_message_cannot_break_its_line() -> None:
    line = TextFormatter().format(record("x %s", "a\nb\r\x1b[31m\u2028\x85c\td"))
    assert line.endswith(r"WARNING a.b: x a\nb\r\x1b[31m\u2028\x85c\x09d")
    assert len(line.splitlines()) == 1


def test_json_is_one_object_a_line() -> None:
    line = JsonFormatter().format(record("x %s", 'a\n"b'))
    assert "\n" not in line
    fields = json.loads(line)
    assert isinstance(fields.pop("time"), float)
    assert fields == {"level": "warning", "logger": "a.b", "message": 'x a\n"b'}


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_the_request_is_named(formatter: logging.Formatter) -> None:
    token = REQUEST_ID.set("req-1")
    try:
        assert "req-1" in formatter.format(record("x"))
    finally:
        REQUEST_ID.reset(token)
    assert "req-1" not in formatter.format(record("x"))


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_exception_is_told(formatter: logging.Formatter) -> None:
    try:
        raise ZeroDivisionError("oh")
    except ZeroDivisionError:
        entry = logging.LogRecord("a", logging.ERROR, __file__, 1, "x", (), sys.exc_info())
    assert "ZeroDivisionError: oh" in formatter.format(entry)
