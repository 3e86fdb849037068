"""What uvicorn's connections lack: limits on slow headers, unread uploads, and clients that vanish or stall;
requests that offer an upgrade, clients that say nothing more after their request, and those of HTTP/1.0.

uvicorn's own protocol closes a connection that was idle for `timeout_keep_alive` after an answer, but waits
for ever for a first request and for the rest of its headers.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from collections import deque
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from server.errors import ApiError, InvalidRequest, ServerBusy
from server.http.close_delimited import close_delimited
from server.http.lingering import lingering
from server.http.stalled import StallWatch
from server.http.upgrade import head_without_upgrade

HEADERS_S = 20.0
MOST_HEADER_BYTES = 64 * 1024
# How long a client may go on sending a body whose answer it has got already.
UNREAD_BODY_S = 5.0
# Between the two questions to a client that has said its last word.
PROBE_S = 0.5
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A peer that vanished without a word is found out in 60 + 4 * 15 seconds.
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}

# Descriptors that connections leave to workers, files and the server itself.
SPARE_DESCRIPTORS = 40


def most_connections() -> int:
    """Return how many connections there may be: a server without descriptors can start no worker."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(1, soft - SPARE_DESCRIPTORS)


class LimitedConnection(HttpToolsProtocol):
    """One connection. A deadline runs while it is silent or sends headers, and while an unread body comes."""

    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _bodyless_bytes = 0  # since the last piece of a body: frames of chunks, and trailers
    _in_headers = True
    _refused = False
    _cycles: deque[RequestResponseCycle]
    _stall: StallWatch

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.access_log = False  # it would log queries; RequestContext has a log of its own
        self._cycles = deque()
        self._stall = StallWatch(transport)
        self._expire_in(HEADERS_S)
        if len(self.connections) > most_connections():
            self._refused = True
            self._answer(503, ServerBusy("The server has too many connections. Try again in 5 s.", 5))
            self._stall.begin()
            return
        tcp = transport.get_extra_info("socket")
        if tcp is not None and tcp.family in (socket.AF_INET, socket.AF_INET6):
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # asyncio does this only for sockets made with an explicit protocol number.
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, value in _KEEP_ALIVE.items():
                tcp.setsockopt(socket.IPPROTO_TCP, option, value)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells only the newest of several pipelined requests that the client has left.
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        self._cycles.clear()
        self.pipeline.clear()
        self._stop_deadline()
        self._stall.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_headers:
            if self._deadline is None:
                self._expire_in(HEADERS_S)
            self._header_bytes += len(data)
        else:
            self._bodyless_bytes += len(data)
        self._unset_keepalive_if_required()
        unparsed: bytes | None = data
        while unparsed is not None and not self._refused:
            unparsed = self._parse(unparsed)
        if self._in_headers and self._header_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
            self._refuse_headers()
        if (
            not self._in_headers
            and self._bodyless_bytes > MOST_HEADER_BYTES
            and not self.transport.is_closing()
        ):
            self._refuse(431, f"the request's trailers are larger than {MOST_HEADER_BYTES} bytes")

    def _parse(self, data: bytes) -> bytes | None:
        """Parse; return what is to be parsed once more, as the parser stops at a request with an upgrade."""
        try:
            self.parser.feed_data(data)
            return None
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self.parser.get_method(), self.parser.get_http_version()
            if method == b"CONNECT":
                self.send_400_response("")
                return None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            return head_without_upgrade(method, self.url, version, self.headers) + data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self.send_400_response("")
            return None

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it, not uvicorn
        """Keep the connection for the answer if the client's last request is whole; else let it be closed.

        Whether such a client waits or is gone only a write tells: the system of one that is gone answers the
        first with a reset, at which the second fails. An interim response is a write that HTTP/1.1 allows at
        any time; HTTP/1.0 has none, so there the end of what a client says is still taken for its departure.
        """
        pending = [cycle for cycle in self._cycles if not cycle.response_complete]
        if not pending or pending[-1].more_body or pending[-1].scope["http_version"] == "1.0":
            return False
        pending[-1].keep_alive = False  # uvicorn closes after this answer
        self._probe()
        self.loop.call_later(PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        answered = next((cycle for cycle in self._cycles if not cycle.response_complete), None)
        if answered is not None and not answered.response_started and not self.transport.is_closing():
            self.transport.write(_PROBE)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        app = lingering(cycle, app, UNREAD_BODY_S)
        if cycle.scope["http_version"] == "1.0":
            app = close_delimited(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        self._bodyless_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        if self._refused or self.parser.should_upgrade():
            return  # the latter will be parsed once more
        # What arrived with them may be a body's, or another request's.
        if (
            len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            > MOST_HEADER_BYTES
        ):
            self._refuse_headers()
            return
        self._in_headers = False
        self._header_bytes = self._bodyless_bytes = 0
        self._stop_deadline()
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        super().on_headers_complete()
        self._cycles.append(self.cycle)

    def on_message_complete(self) -> None:
        if self._refused or self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_headers = True
        self._stop_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_headers and self.cycle.response_complete and not self.transport.is_closing():
            self._expire_in(UNREAD_BODY_S)
        if self.transport.is_closing():
            self._stall.begin()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._stall.begin()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stall.end()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no valid HTTP request")

    def _refuse_headers(self) -> None:
        self._refuse(431, f"the request's headers are larger than {MOST_HEADER_BYTES} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answer in the API's form and close; whole requests that came before get their answers first."""
        self._refused = True
        pending = [cycle for cycle in self._cycles if not cycle.response_complete]
        if pending and not pending[-1].more_body:
            pending[-1].keep_alive = False  # uvicorn closes after this answer
            return
        if not pending or (len(pending) == 1 and not pending[0].response_started):
            self._answer(status, InvalidRequest(message))
        else:
            self.transport.close()
        self._stall.begin()

    def _answer(self, status: int, error: ApiError) -> None:
        """Write an answer that is no application's, and close."""
        body = msgspec.json.encode(error.body())
        headers = {
            **error.headers,
            "content-type": "application/json",
            "content-length": len(body),
            "connection": "close",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[status] + head.encode() + b"\r\n" + body)
        self.transport.close()

    def _expire_in(self, seconds: float) -> None:
        self._stop_deadline()
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        """Close, unless an answer is under way: bytes that follow its request are no reason to cut it."""
        self._deadline = None
        if all(cycle.response_complete for cycle in self._cycles):
            self.transport.close()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
