"""How the log looks: text or JSON, one record a line, each with its request's id; and how in the journal."""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import time

import msgspec

from server.log_writer import PatientHandler

REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")

# Libraries whose information is of use only to those who debug them.
_QUIET = ("uvicorn.error", "httpx2", "httpcore2", "asyncio")


class TextFormatter(logging.Formatter):
    """2026-01-31T12:00:00 INFO server.app: message [request id]. A message cannot break its line."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{when} {record.levelname} {self.said(record)}"

    def said(self, record: logging.LogRecord) -> str:
        """Return what a record says, without when and how grave it is."""
        line = f"{record.name}: {record.getMessage().translate(_ONE_LINE)}"
        if request_id := REQUEST_ID.get():
            line += f" [{request_id}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JournalFormatter(logging.Formatter):
    """For systemd's journal, which has the time already: each line begins with its priority, as in <4>.

    what: forms the line behind it.
    """

    def __init__(self, what: TextFormatter | JsonFormatter) -> None:
        super().__init__()
        self._what = what

    def format(self, record: logging.LogRecord) -> str:
        text = self._what.said(record)
        return "\n".join(f"<{_priority(record.levelno)}>{line}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return self.said(record)

    def said(self, record: logging.LogRecord) -> str:
        """Return the object."""
        fields: dict[str, str | float] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        whole = {
            name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
            for name, value in fields.items()
        }
        return msgspec.json.encode(whole).decode()


_ONE_LINE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def configure_logging(log_format: str, level: str) -> None:
    """Send every record of this process to standard error in one form. Called once, by `serve`.

    What is still to be written at the process's end `logging` has written then.
    """
    number = sys.stderr.fileno()
    handler = PatientHandler(number)
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    handler.setFormatter(JournalFormatter(formatter) if is_journal(number) else formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def is_journal(number: int) -> bool:
    """Return whether a file descriptor leads to systemd's journal, which says so in JOURNAL_STREAM."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(number)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def _priority(level: int) -> int:
    """Return syslog's priority of a level: 3 error, 4 warning, 6 information, 7 debugging."""
    return next((number for least, number in _PRIORITIES if level >= least), 7)


_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
