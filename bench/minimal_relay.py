"""The least that could relay tokens: one ASGI function and one child, no queue, no checks, no templates.

The floor the server is held against: the same frames of the same backend, the same event format, uvicorn on
uvloop. `--child FD` is its worker: it plays one run at a time and writes each token straight to the socket.
Run it as `python -m bench.minimal_relay PORT`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from threading import Event
from typing import Any

import uvicorn

from backends.base import GenerateParams, Sampling, Span, TokenLogprob
from backends.protocol import Delta, Finished, FrameDecoder, Generate, encode_frame
from bench.processes import python
from bench.replay import ReplayBackend

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
_OPENING = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"replay","system_fingerprint":"replay 1","choices":[{"index":0,"delta":{"content":'
)
_CLOSING = b'},"logprobs":null,"finish_reason":null}]}\n\n'


class SocketSink:
    """A sink that writes each token's frame at once."""

    def __init__(self, connection: socket.socket, request_id: int) -> None:
        self._connection = connection
        self._request_id = request_id

    def prefill(self, done: int, total: int) -> None:
        pass

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        self._connection.sendall(encode_frame(Delta(self._request_id, text, tokens, logprobs)))

    def warn(self, message: str) -> None:
        pass


def child(connection: socket.socket) -> None:
    """Play what is asked for until the other side closes."""
    backend = ReplayBackend()
    decoder: FrameDecoder[Generate] = FrameDecoder(Generate)
    while data := connection.recv(65536):
        for request in decoder.feed(data):
            sink = SocketSink(connection, request.request_id)
            reason, usage = backend.generate(request.params, sink, Event())
            connection.sendall(encode_frame(Finished(request.request_id, reason, usage)))


class MinimalRelay:
    """The ASGI application. One run at a time, guarded by a lock."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"] == "/health":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._chat(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *python("-m", "bench.minimal_relay", "--child", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._writer.close()
        await process.wait()
        await send({"type": "lifespan.shutdown.complete"})

    async def _chat(self, receive: Receive, send: Send) -> None:
        assert self._reader is not None and self._writer is not None
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = json.loads(body)
        params = GenerateParams(
            prompt=[Span(request["messages"][-1]["content"], False)],
            sampling=Sampling(),
            max_tokens=request["max_tokens"],
        )
        decoder: FrameDecoder[Delta | Finished] = FrameDecoder(Delta | Finished)
        async with self._lock:
            self._writer.write(encode_frame(Generate(0, params)))
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            finished = False
            while not finished:
                for frame in decoder.feed(await self._reader.read(65536)):
                    if isinstance(frame, Finished):
                        finished = True
                        break
                    event = _OPENING + json.dumps(frame.text).encode() + _CLOSING
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def main(arguments: list[str]) -> None:
    if arguments[0] == "--child":
        child(socket.socket(fileno=int(arguments[1])))
    else:
        uvicorn.run(
            MinimalRelay(), port=int(arguments[0]), loop="uvloop", http="httptools", log_level="warning",
            access_log=False,
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
