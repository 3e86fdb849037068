"""A client that costs little and checks everything: raw sockets in one thread, parsed after the end.

While answers arrive it only keeps bytes and the time they came, so that it does not take the processor from
the server it measures. Knows server-sent events in HTTP/1.1 and the chat completions format, nothing else.
"""

from __future__ import annotations

import json
import math
import selectors
import socket
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.replay import Played, Script

_RECEIVE_BYTES = 256 * 1024


class AnswerError(Exception):
    """An answer that is not what the script says: a status, an error event, text lost or doubled."""


@dataclass
class Answer:
    """One streamed answer as it came. Times are seconds of the monotonic clock."""

    sent: float
    ended: float = 0.0
    received: list[tuple[float, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Streamed:
    """The texts of an answer's events, one an event, and when each was there."""

    texts: list[str]
    times: list[float]
    wire_bytes: int


@dataclass(frozen=True)
class Timing:
    """One answer of a script, seen from both ends. Rates in tokens a second, nan where text was lost."""

    fault: str
    """What is wrong with the text; empty when each token came once, in order, in an event of its own."""
    raw_rate: float
    client_rate: float
    first_token_ms: float
    first_after_callback_ms: float
    overhead_ms: float
    """What server and relay add to the runtime's own time to the first token."""
    wire_bytes_per_token: float


def chat_request(host: str, model: str, script: Script) -> bytes:
    """Return the whole HTTP request for one streamed answer of a script."""
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "max_tokens": script.tokens,
            "messages": [{"role": "user", "content": script.prompt()}],
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def stream(host: str, port: int, requests: Sequence[bytes], timeout_s: float = 120) -> list[Answer]:
    """Send all requests at once, each on a connection of its own, and read all answers to their ends.

    Raises TimeoutError when nothing came from any of them for `timeout_s`.
    """
    answers: list[Answer] = []
    with selectors.DefaultSelector() as selector:
        try:
            for request in requests:
                connection = socket.create_connection((host, port), timeout=timeout_s)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                answer = Answer(sent=time.monotonic())
                connection.sendall(request)
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, answer)
                answers.append(answer)
            while selector.get_map():
                ready = selector.select(timeout_s)
                if not ready:
                    raise TimeoutError(f"no answer sent anything for {timeout_s:g} s")
                for key, _ in ready:
                    connection = key.fileobj  # type: ignore[assignment]  # registered above, always a socket
                    data = connection.recv(_RECEIVE_BYTES)
                    now = time.monotonic()
                    if data:
                        key.data.received.append((now, data))
                    else:
                        key.data.ended = now
                        selector.unregister(connection)
                        connection.close()
        finally:
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]  # as above
    return answers


def parse(answer: Answer) -> Streamed:
    """Read the events of an answer. Raises AnswerError for anything but a whole, good stream."""
    raw = b"".join(data for _, data in answer.received)
    head, separator, _ = raw.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0]
    if not separator or b" 200 " not in status + b" ":
        raise AnswerError(f"the server answered {raw[:600].decode(errors='replace')!r}")
    body, origins = _body(raw, len(head) + 4, chunked=b"transfer-encoding: chunked" in head.lower())
    arrivals: list[int] = []
    total = 0
    for _, data in answer.received:
        total += len(data)
        arrivals.append(total)
    texts: list[str] = []
    times: list[float] = []
    done = False
    position = 0
    # Both line ends are legal in the format, and servers differ.
    blank = b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    for event in body.split(blank):
        position += len(event) + len(blank)
        data = b"".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        if not data:
            continue
        if data == b"[DONE]":
            done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise AnswerError(f"the stream ended in an error: {chunk['error']}")
        text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        if text:
            raw_end = _origin(origins, min(position, len(body)))
            texts.append(text)
            times.append(answer.received[bisect_left(arrivals, raw_end)][0])
    if not done:
        raise AnswerError(f"the stream ended without [DONE] after {len(texts)} events")
    return Streamed(texts, times, len(raw))


def timing(answer: Answer, script: Script) -> Timing:
    """Hold an answer against its script. Raises AnswerError when it is an error or has no beginning."""
    streamed = parse(answer)
    try:
        played = Played.of(streamed.texts, script)
    except ValueError as error:
        raise AnswerError(str(error)) from error
    steps = script.tokens - 1
    first = streamed.times[0]
    whole = not played.fault
    return Timing(
        fault=played.fault,
        raw_rate=steps / (played.last - played.first) if whole else math.nan,
        # From the runtime's first token, not the client's: holding text back must not look fast.
        client_rate=steps / (streamed.times[-1] - played.first) if whole else math.nan,
        first_token_ms=(first - answer.sent) * 1000,
        first_after_callback_ms=(first - played.first) * 1000,
        overhead_ms=((first - answer.sent) - (played.first - played.began)) * 1000,
        wire_bytes_per_token=streamed.wire_bytes / script.tokens,
    )


def _body(raw: bytes, start: int, chunked: bool) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the body, and pairs (end in the body, end in raw) of its pieces."""
    if not chunked:
        return raw[start:], [(len(raw) - start, len(raw))]
    pieces: list[bytes] = []
    origins: list[tuple[int, int]] = []
    length = 0
    while True:
        line_end = raw.find(b"\r\n", start)
        if line_end < 0:
            raise AnswerError("the connection was closed in mid-answer")
        size = int(raw[start:line_end].partition(b";")[0], 16)
        if size == 0:
            return b"".join(pieces), origins
        start = line_end + 2
        if start + size > len(raw):
            raise AnswerError("the connection was closed in mid-answer")
        pieces.append(raw[start : start + size])
        length += size
        start += size
        origins.append((length, start))
        start += 2


def _origin(origins: list[tuple[int, int]], position: int) -> int:
    """Return where in the raw bytes the first `position` bytes of the body are complete."""
    index = bisect_left(origins, (position, 0))
    end, raw_end = origins[index]
    return raw_end - (end - position)
