"""The measuring client must notice every way in which a relay can spoil text, or its figures mean nothing."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from bench.client import Answer, AnswerError, parse, timing
from bench.replay import Script

SCRIPT = Script(tokens=5, rate=0, prefill_ms=0)
SENT = ["1000000000,2000000000", "|00001", "|00002", "|00003", "|4000000000"]


def events(texts: list[str], *, done: bool = True) -> bytes:
    chunks = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    chunks += [{"choices": [{"delta": {"content": text}}]} for text in texts]
    body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return b": queued 0\n\n" + body + (b"data: [DONE]\n\n" if done else b"")


def answer(body: bytes, *, cuts: list[int] | None = None, status: str = "200 OK") -> Answer:
    """Wrap a body in chunks of 100 bytes, received in the pieces `cuts` make, one each second from 3 on."""
    wire = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    for start in range(0, len(body), 100):
        piece = body[start : start + 100]
        wire += b"%x\r\n%s\r\n" % (len(piece), piece)
    wire += b"0\r\n\r\n"
    edges = [0, *(cuts or []), len(wire)]
    pieces = [wire[start:end] for start, end in pairwise(edges)]
    return Answer(sent=0.5, received=[(3.0 + number, piece) for number, piece in enumerate(pieces)])


def test_a_whole_answer_gives_the_times_of_both_ends() -> None:
    seen = timing(answer(events(SENT)), SCRIPT)
    assert seen.fault == ""
    assert seen.raw_rate == 4 / (4.0 - 2.0)
    assert seen.client_rate == 4 / (3.0 - 2.0)
    assert seen.first_token_ms == 2500
    assert seen.first_after_callback_ms == 1000
    assert seen.overhead_ms == 1500  # 2.5 s to the first token, of which the backend took 1


@pytest.mark.parametrize("cut", range(40, 700, 7))
def test_an_event_is_there_when_its_last_byte_is(cut: int) -> None:
    whole = answer(events(SENT)).received[0][1]
    streamed = parse(answer(events(SENT), cuts=[cut]))
    assert streamed.texts == SENT
    for text, moment in zip(streamed.texts, streamed.times, strict=True):
        # The text itself may be cut by a chunk's edge, so only what is surely before or after is asserted.
        at = whole.find(text.encode())
        if at >= 0 and at + len(text) + 60 < cut:
            assert moment == 3.0
        if at >= cut:
            assert moment == 4.0


@pytest.mark.parametrize(
    "texts",
    [
        [*SENT[:2], *SENT[3:]],  # lost
        [*SENT[:3], *SENT[2:]],  # doubled
        [SENT[0], SENT[1] + SENT[2], *SENT[3:]],  # merged
        [SENT[0], SENT[2], SENT[1], *SENT[3:]],  # out of order
        SENT[:-1],  # the last one lost
    ],
)
def test_spoilt_text_is_noticed(texts: list[str]) -> None:
    seen = timing(answer(events(texts)), SCRIPT)
    assert seen.fault
    assert math.isnan(seen.client_rate)


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(AnswerError, match="503"):
        timing(answer(b"busy", status="503 Service Unavailable"), SCRIPT)
    with pytest.raises(AnswerError, match=r"without \[DONE\]"):
        timing(answer(events(SENT, done=False)), SCRIPT)
    with pytest.raises(AnswerError, match="too bad"):
        timing(answer(b'data: {"error": {"message": "too bad"}}\n\n'), SCRIPT)
    cut = answer(events(SENT))
    cut.received = [(moment, data[:300]) for moment, data in cut.received]
    with pytest.raises(AnswerError, match="mid-answer"):
        timing(cut, SCRIPT)
