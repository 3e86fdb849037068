"""The messages between server and worker, and their framing on a stream socket.

A frame is a 4-byte big-endian length and a msgpack body, a tagged struct of the unions below. Knows no
engine and no event loop: `FrameDecoder` is fed bytes by whoever reads the socket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from backends.base import EmbedParams, ErrorCode, FinishReason, GenerateParams, Span, TokenLogprob, Usage
from backends.spec import ModelInfo, ModelSpec

MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")
T = TypeVar("T")


class ProtocolError(Exception):
    """The other side sent something that is no frame of this protocol."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# server -> worker


class Load(_Message, frozen=True):
    """First message to a worker: what to load. `heartbeat_s`: be heard from at least this often, seconds."""

    spec: ModelSpec
    heartbeat_s: float


class Generate(_Message, frozen=True):
    """Make one answer. One run at a time: the next Generate comes after Finished or Failed."""

    request_id: int
    params: GenerateParams


class Embed(_Message, frozen=True):
    """Make vectors. A run like that of Generate: it is cancelled and ends in the same ways."""

    request_id: int
    params: EmbedParams


class Cancel(_Message, frozen=True):
    """End the run at its next token. It still ends with Finished or Failed."""

    request_id: int


class Count(_Message, frozen=True):
    """Count a prompt's tokens; answered while a run goes on."""

    request_id: int
    prompt: list[Span]


class Unload(_Message, frozen=True):
    """Close the model and exit."""


# worker -> server


class Loading(_Message, frozen=True):
    """How far loading has come, 0 to 1, and what is being done."""

    done: float
    what: str


class Ready(_Message, frozen=True):
    """The model is loaded."""

    info: ModelInfo


class LoadFailed(_Message, frozen=True):
    """The model cannot be loaded; the worker exits after this."""

    code: ErrorCode
    message: str


class Begun(_Message, frozen=True):
    """The engine is given a request now: from here on a worker that dies may have died of it."""

    request_id: int


class Prefill(_Message, frozen=True):
    """How many of the prompt tokens to be computed have been."""

    request_id: int
    done: int
    total: int


class Delta(_Message, frozen=True):
    """Text to pass on, and how many tokens it stands for."""

    request_id: int
    text: str
    tokens: int
    logprobs: list[TokenLogprob] | None = None


class Warned(_Message, frozen=True):
    """Something seems wrong with the model, for its owner."""

    message: str


class Finished(_Message, frozen=True):
    """A run has ended as it should. vectors: an Embed's, little-endian float32, in its inputs' order."""

    request_id: int
    reason: FinishReason
    usage: Usage
    vectors: list[bytes] = []


class Failed(_Message, frozen=True):
    """A request cannot be honoured; the worker goes on, unless the code is backend_crashed: then it exits."""

    request_id: int
    code: ErrorCode
    message: str
    param: str | None = None


class Counted(_Message, frozen=True):
    """The answer to Count."""

    request_id: int
    tokens: int


class Heartbeat(_Message, frozen=True):
    """The worker's I/O thread is alive."""


ToWorker = Load | Generate | Embed | Cancel | Count | Unload
FromWorker = (
    Loading | Ready | LoadFailed | Begun | Prefill | Delta | Warned | Finished | Failed | Counted | Heartbeat
)

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: ToWorker | FromWorker) -> bytes:
    """Return one message as a frame. Raises ProtocolError for one that has no encoding or is too long."""
    try:
        body = _encoder.encode(message)
    except (ValueError, OverflowError, TypeError) as error:  # half of a character; an integer over 64 bits
        raise ProtocolError(f"a {type(message).__name__} cannot be sent: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[T]):
    """Turns bytes as they arrive into messages. One per connection and direction; not thread-safe.

    `message_type` is T itself, one of the unions above; a type checker has no way to say that of a union.
    """

    def __init__(self, message_type: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(message_type)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """Yield each message that `data` completes. Raises ProtocolError for bytes that are no frame."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise ProtocolError(f"a frame says it has {length} bytes")
                end = start + 4 + length
                if len(buffer) < end:
                    break
                body = bytes(memoryview(buffer)[start + 4 : end])
                start = end
                try:
                    yield self._decoder.decode(body)
                except msgspec.MsgspecError as error:
                    raise ProtocolError(f"a frame does not hold a known message: {error}") from error
        finally:
            del buffer[:start]
