"""Stands between a client and a server and notes what passes: requests, answers, and who hung up.

It copies bytes and parses them aside, so that neither side sees another pace, and a closed connection is
closed on the other side at once.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httptools

PIECE = 65536


@dataclass
class Exchange:
    """A request and its answer so far. complete: whether the answer has come to its end."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int | None = None
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""
    complete: bool = False
    closed: bool = False

    @property
    def asked(self) -> dict[str, Any]:
        """The request's JSON."""
        asked: dict[str, Any] = json.loads(self.body)
        return asked

    @property
    def answered(self) -> dict[str, Any]:
        """The answer's JSON; of a stream the objects of its events stand under "events"."""
        if not self.answer_headers.get("content-type", "").startswith("text/event-stream"):
            answered: dict[str, Any] = json.loads(self.answer)
            return answered
        lines = [line[6:] for line in self.answer.splitlines() if line.startswith(b"data: {")]
        return {"events": [json.loads(line) for line in lines if line.endswith(b"}")]}

    @property
    def abandoned(self) -> bool:
        """Whether the connection was closed before the answer was complete."""
        return self.closed and not self.complete


class Recorder:
    """What passed, in the order of the requests. `wait` for what is still to come."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._seen: list[Exchange] = []
        self._changed = threading.Condition()

    @property
    def seen(self) -> list[Exchange]:
        """The exchanges so far."""
        with self._changed:
            return list(self._seen)

    def wait(self, wanted: Callable[[Exchange], object], since: int, seconds: float) -> Exchange:
        """Return the first exchange from number `since` on that is as wanted, once there is one."""

        def found() -> Exchange | None:
            return next((exchange for exchange in self._seen[since:] if wanted(exchange)), None)

        with self._changed:
            if not self._changed.wait_for(found, seconds):
                shown = [(e.method, e.path, e.status, e.complete, e.closed) for e in self._seen[since:]]
                raise AssertionError(f"no such exchange; there were {shown}")
            exchange = found()
        assert exchange is not None
        return exchange

    def add(self, exchange: Exchange) -> None:
        """Note a request."""
        with self._changed:
            self._seen.append(exchange)
            self._changed.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold what is noted still while it is changed."""
        with self._changed:
            yield
            self._changed.notify_all()


class _Connection:
    """One connection's two directions, as callbacks of the parsers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open: list[Exchange] = []
        self.requests = httptools.HttpRequestParser(_Requests(self._begin))
        self._responses: Any = None

    def _begin(self, request: _Requests) -> None:
        exchange = Exchange(
            self.requests.get_method().decode(), request.url, dict(request.headers), bytes(request.body)
        )
        self._open.append(exchange)
        self._recorder.add(exchange)

    def response(self, data: bytes) -> None:
        with self._recorder.changing():
            if self._responses is None:
                self._responses = httptools.HttpResponseParser(_Response(self))
            self._responses.feed_data(data)

    def status(self) -> int:
        code: int = self._responses.get_status_code()
        return code

    @property
    def current(self) -> Exchange:
        return self._open[0]

    def finished(self) -> None:
        self._open.pop(0).complete = True

    def close(self) -> None:
        with self._recorder.changing():
            for exchange in self._open:
                exchange.closed = True


class _Requests:
    def __init__(self, done: Callable[[_Requests], None]) -> None:
        self._done = done
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self.url = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()

    def on_url(self, url: bytes) -> None:
        self.url += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self._done(self)


class _Response:
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def on_header(self, name: bytes, value: bytes) -> None:
        self._connection.current.answer_headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self._connection.current.status = self._connection.status()

    def on_body(self, body: bytes) -> None:
        self._connection.current.answer += body

    def on_message_complete(self) -> None:
        self._connection.finished()


@contextmanager
def recording(server_url: str) -> Iterator[Recorder]:
    """Run a recorder before a server until the block ends; its `url` takes the place of the server's."""
    host, _, port = server_url.removeprefix("http://").partition(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connection = _Connection(recorder)
            with socket.create_connection((host, int(port))) as upstream:
                back = threading.Thread(
                    target=_copy, args=(upstream, self.request, connection.response), daemon=True
                )
                back.start()
                _copy(self.request, upstream, connection.requests.feed_data)
                back.join()
            connection.close()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        recorder = Recorder(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield recorder
        finally:
            server.shutdown()
            thread.join()


def _copy(source: socket.socket, target: socket.socket, note: Callable[[bytes], object]) -> None:
    """Copy until one side closes, then close both directions of both."""
    with suppress(OSError):
        while data := source.recv(PIECE):
            note(data)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
