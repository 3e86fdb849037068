"""How the log looks: text or JSON, one record a line, each with its request's id."""

from __future__ import annotations

import contextvars
import logging
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
        message = record.getMessage().translate(_ONE_LINE)
        request_id = REQUEST_ID.get()
        line = f"{when} {record.levelname} {record.name}: {message}"
        if request_id:
            line += f" [{request_id}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
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
    handler = PatientHandler(sys.stderr.fileno())
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
