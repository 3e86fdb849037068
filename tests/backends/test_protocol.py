"""Frames: golden bytes worked out by hand from the msgpack specification, and any way of cutting a stream."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import protocol
from backends.base import GenerateParams, Image, Sampling, Span, TokenLogprob, TopLogprob, Usage
from backends.protocol import (
    Begun,
    Cancel,
    Count,
    Counted,
    Delta,
    Failed,
    Finished,
    FrameDecoder,
    FromWorker,
    Generate,
    Heartbeat,
    Load,
    LoadFailed,
    Loading,
    Prefill,
    ProtocolError,
    Ready,
    ToWorker,
    Unload,
    Warned,
    encode_frame,
)
from backends.spec import HybridOptions, ModelInfo, ModelSpec

SPEC = ModelSpec(
    model_id="m",
    backend="hybrid",
    path="/models/m",
    context_length=2048,
    max_tokens=100,
    eos=["</s>", 2],
    tokenizer=None,
    hybrid=HybridOptions(executor="rknn", core_mask="0_1", threads=3),
)
PARAMS = GenerateParams(
    prompt=[Span("<|im_start|>", True), Span("naïve 中文 🙂 \0", False)],
    sampling=Sampling(temperature=0.5, seed=7, logit_bias={5: -100.0}),
    max_tokens=3,
    stop=["\n\n"],
    logprobs=2,
    images=[Image(b"\xff\x00", "messages.0.content.1")],
)
USAGE = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=3, prefill_ms=1.5, decode_ms=2.5)
LOGPROBS = [TokenLogprob("a", b"a", -0.25, [TopLogprob("", b"\xe4", -3.0)])]

TO_WORKER: Sequence[ToWorker] = [
    Load(SPEC, 10.0),
    Generate(1, PARAMS),
    Cancel(1),
    Count(2, PARAMS.prompt),
    Unload(),
]
FROM_WORKER: Sequence[FromWorker] = [
    Loading(0.5, "segments"),
    Ready(ModelInfo(runtime="r 1", context_length=1, vocab_size=2, memory_mb=3, warnings=["w"])),
    LoadFailed("model_corrupt", "damaged"),
    Begun(1),
    Prefill(1, 32, 64),
    Delta(1, "hello", 2, LOGPROBS),
    Warned("something is wrong"),
    Finished(1, "length", USAGE),
    Failed(1, "unsupported_parameter", "no", "min_p"),
    Counted(2, 17),
    Heartbeat(),
]


def from_worker() -> FrameDecoder[FromWorker]:
    return FrameDecoder(FromWorker)


def test_golden_frames() -> None:
    # fixarray 1, fixstr 9
    assert encode_frame(Heartbeat()) == b"\x00\x00\x00\x0b\x91\xa9Heartbeat"
    # fixarray 5: tag, uint8 200, fixstr, fixint, nil
    assert encode_frame(Delta(200, "é", 1)) == b"\x00\x00\x00\x0e\x95\xa5Delta\xcc\xc8\xa2\xc3\xa9\x01\xc0"


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_messages_to_the_worker_survive_the_trip(message: ToWorker) -> None:
    decoder: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
    assert list(decoder.feed(encode_frame(message))) == [message]


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
def test_messages_from_the_worker_survive_the_trip(message: FromWorker) -> None:
    assert list(from_worker().feed(encode_frame(message))) == [message]


@given(st.lists(st.integers(min_value=0, max_value=600)))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    stream = b"".join(encode_frame(message) for message in FROM_WORKER)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = from_worker()
    received: list[FromWorker] = []
    for start, end in itertools.pairwise(edges):
        received += decoder.feed(stream[start:end])
    assert received == FROM_WORKER


def test_messages_before_a_broken_one_are_delivered() -> None:
    decoder = from_worker()
    feed = decoder.feed(encode_frame(Heartbeat()) + b"\x00\x00\x00\x01\xc1")  # 0xc1 is never used in msgpack
    assert next(feed) == Heartbeat()
    with pytest.raises(ProtocolError, match="known message"):
        next(feed)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(ProtocolError):
        list(from_worker().feed(encode_frame(Unload())))


def test_a_field_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ProtocolError):
        list(from_worker().feed(b"\x00\x00\x00\x0a\x92\xa7Counted\x01"))  # one field short


def test_an_absurd_length_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(ProtocolError, match="268435457"):
        list(from_worker().feed(struct.pack(">I", 256 * 1024 * 1024 + 1)))


def test_a_message_over_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 100)
    with pytest.raises(ProtocolError, match="over the limit of 100"):
        encode_frame(Delta(1, "x" * 200, 1))
