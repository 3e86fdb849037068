"""Value types that the server and the workers share.

What is asked of a model and what comes of it; how a model is loaded stands in `spec`. Knows no engine, no
socket and no HTTP. What crosses the process border is made of msgspec structs: typed on both sides, cheap to
encode.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "cancelled"]

ErrorCode = Literal[
    "context_length_exceeded",
    "unsupported_parameter",
    "invalid_request",
    "runtime_version_mismatch",
    "model_corrupt",
    "insufficient_memory",
    "load_failed",
    "backend_crashed",
    "backend_timeout",
]


class BackendError(Exception):
    """What went wrong in a worker, in words for the person who runs the server.

    `code` is one of the codes of the HTTP error table; `message` says what is wrong and what to do;
    `param` names the request field at fault, where there is one.
    """

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param


class EngineLost(BackendError):
    """An engine is in a state from which only a new process recovers: the worker reports it and ends."""

    def __init__(self, message: str) -> None:
        super().__init__("backend_crashed", message)


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a rendered prompt.

    `control` is True for text of the template, in which control tokens count, and False for text that came
    from a client, which is encoded as plain text whatever it spells. `image`: the span has no text and is the
    place of that one of GenerateParams.images.
    """

    text: str
    control: bool
    image: int | None = None


class Image(msgspec.Struct, frozen=True, array_like=True):
    """An image file as a client gave it, undecoded. `field`: where in the request it stood, for errors."""

    data: bytes
    field: str


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. The defaults are the neutral values: they change nothing.

    temperature 0 is greedy. top_k 0 and top_p 1 keep every token. repeat_penalty divides (1 is neutral),
    presence_penalty and frequency_penalty subtract (0 is neutral). seed None draws one from the system.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter to run an answer with. path: its file, absolute; read by the first run that has it."""

    name: str
    path: str
    scale: float = 1.0


class GenerateParams(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to make.

    max_tokens None: the entry's limit or the room that is left, whichever is less; a number above the room
    is cut down to it. stop: strings that end the answer and are not part of it. logprobs None: none; else
    how many alternatives to report beside each chosen token (0 to 20). owner: whose request it is;
    prompts of different owners share no cache.
    """

    prompt: list[Span]
    sampling: Sampling
    max_tokens: int | None = None
    stop: list[str] = []
    logprobs: int | None = None
    adapter: Adapter | None = None
    owner: str = ""
    images: list[Image] = []


class EmbedInput(msgspec.Struct, frozen=True, kw_only=True):
    """One text to embed, or else the token ids of one, taken as they are.

    field: the request field it came in, for errors.
    """

    prompt: list[Span] = []
    token_ids: list[int] | None = None
    field: str = "input"


class EmbedParams(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed, each into a vector of its own.

    dimensions None: vectors as long as the model makes them. They have no owner: nothing computed for one is
    used for another.
    """

    inputs: list[EmbedInput]
    dimensions: int | None = None


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token that could have been chosen. `data` holds its bytes; `text` what can be shown of them."""

    text: str
    data: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A chosen token, its log probability under the model's own distribution, and the best alternatives."""

    text: str
    data: bytes
    logprob: float
    top: list[TopLogprob]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one run in real tokens, and its times. cached_tokens of the prompt were not prefilled."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_ms: float
    decode_ms: float
