"""Value types that the server and the workers share.

Knows no engine, no socket and no HTTP. What crosses the process border is made of msgspec structs: typed on
both sides, cheap to encode. The rest is what a backend and its worker are to each other: what it raises, how
it is cancelled, where it puts what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Literal, Protocol, runtime_checkable

import msgspec

FinishReason = Literal["stop", "length", "cancelled"]

HybridExecutor = Literal["auto", "onnxruntime", "rknn", "rknnlite"]
CoreMask = Literal["auto", "0", "1", "2", "0_1", "0_1_2", "all"]
KvDtype = Literal["fp32", "fp16"]

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


META_FILE = "meta2.json"  # describes a hybrid folder, and is what tells one from any other folder


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


class HybridOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `hybrid:` keys of a registry entry. threads None: the engine's choice; meta: path of an overlay."""

    executor: HybridExecutor = "auto"
    core_mask: CoreMask = "auto"
    threads: int | None = None
    kv_dtype: KvDtype = "fp32"
    cache_mb: int = 512
    variant: str | None = None
    meta: str | None = None


class PromptCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A file for the KV cache of a prompt's fixed beginning. directory: where it may lie, also if missing."""

    directory: str
    prefix: list[Span]


class RkllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `rkllm:` keys of a registry entry, and which runtime library the server has chosen for it.

    library: absolute path of a librkllmrt.so. runtime, runtime_check: the entry's keys of these names, for
    what the library itself says once it has loaded the model.

    What the library does where its makers do not say, as `rkserve doctor --deep` can tell: input: prompts as
    token ids where there is a tokenizer ("auto"), or always as text. runtime_bos: the BOS that the library
    itself puts before a text, left out of ours. last_token_cached: the last token of an answer that was cut
    short stands in the KV cache, too. clear_after_abort: only an emptied KV cache is sound after an abort.
    context_reserve: tokens of the context that prompts may not take.
    """

    library: str | None = None
    runtime: str | None = None
    runtime_check: Literal["strict", "warn"] = "strict"
    base_domain_id: int = 0
    cpus: tuple[int, ...] = (4, 5, 6, 7)
    embed_flash: bool = True
    n_keep: int = -1
    skip_special_token: bool = False
    input: Literal["auto", "text"] = "auto"
    runtime_bos: str | None = None
    last_token_cached: bool = False
    clear_after_abort: bool = False
    context_reserve: int = 4
    prompt_cache: PromptCacheOptions | None = None


class EmbeddingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `embeddings:` keys of a registry entry, as far as a worker needs them.

    append: text that follows every input, in which control tokens count. matryoshka: the model was trained so
    that the beginning of a vector is a vector.
    """

    pooling: Literal["last", "mean", "cls"] = "last"
    normalize: bool = True
    append: str = ""
    matryoshka: bool = False


class ImageMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Texts for images in a prompt: what holds an image's place, and what the model sees around and in it."""

    image: str = "<image>"
    start: str = "<|vision_start|>"
    end: str = "<|vision_end|>"
    content: str = "<|image_pad|>"


class VisionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `vision:` keys of a registry entry, for an image encoder that is there.

    encoder: absolute path of a .rknn or .onnx file. runtime: what versions of librknnrt a .rknn may run on.
    size: width and height in pixels. mean, std: one a channel, in the units of pixels, 0 to 255; None: pixels
    go in as they are. max_pixels: of an image as it comes.
    """

    encoder: str
    runtime: str | None = None
    size: tuple[int, int]
    layout: Literal["nhwc", "nchw"] = "nhwc"
    dtype: Literal["uint8", "float32"] = "uint8"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    resize: Literal["square_pad", "stretch"] = "square_pad"
    marks: ImageMarks = ImageMarks()
    max_pixels: int = 20_000_000


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to load a model. Paths are absolute and were checked by the server.

    path: the hybrid folder or the .rkllm file. tokenizer: a tokenizer.json, None for the one in the folder
    (hybrid) or in the file (rkllm). eos: strings or ids that end an answer. repeat_guard: end an answer that
    only repeats itself. vision: how images are taken, embeddings: how vectors are made; None: not at all.
    """

    model_id: str
    backend: Literal["hybrid", "rkllm"]
    path: str
    context_length: int
    max_tokens: int
    eos: list[str | int]
    stop: list[str] = []
    repeat_guard: bool = True
    tokenizer: str | None = None
    hybrid: HybridOptions = HybridOptions()
    rkllm: RkllmOptions = RkllmOptions()
    vision: VisionOptions | None = None
    embeddings: EmbeddingOptions | None = None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model reports. `runtime` names engine and version, as in "onnxruntime 1.32.0".

    vocab_size 0: not known. details: what else the runtime tells of itself and the model, for people.
    """

    runtime: str
    context_length: int
    vocab_size: int
    memory_mb: int
    warnings: list[str] = []
    details: dict[str, str] = {}


class Cancellation(Event):
    """A run's cancel switch: an event that can also call someone. For any thread; once set it stays so."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = Lock()
        self._listener: Callable[[], None] | None = None

    def set(self) -> None:
        """Cancel. Calls the listener, in this thread, the first time."""
        with self._guard:
            listener = None if self.is_set() else self._listener
            super().set()
        if listener is not None:
            listener()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Have `listener` called when this is set, at once if it is. It must not block. None: nobody."""
        with self._guard:
            self._listener = listener
            now = self.is_set()
        if now and listener is not None:
            listener()


class Sink(Protocol):
    """Where a backend puts what a run produces. Called from the engine's thread; never blocks for long."""

    def prefill(self, done: int, total: int) -> None:
        """Report that `done` of the `total` prompt tokens that must be computed have been."""

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        """Hand over text that is complete: no split character, no part of a stop sequence.

        `tokens` is how many tokens it stands for; `logprobs` one entry a token where they were asked for.
        """

    def warn(self, message: str) -> None:
        """Tell the owner of the model what seems wrong with it. Says nothing of what a client wrote."""


class Progress(Protocol):
    """Where a backend reports how far loading has come."""

    def __call__(self, done: float, what: str) -> None:
        """`done` from 0 to 1; `what` a few words for a person."""


class Backend(Protocol):
    """A loaded model. `generate` is called from one thread, one run at a time; the others from any thread."""

    info: ModelInfo

    def count_tokens(self, prompt: Sequence[Span]) -> int:
        """Return the length of a prompt in tokens. Raises context_length_exceeded if it is hopeless."""

    def generate(
        self, params: GenerateParams, sink: Sink, cancelled: Cancellation
    ) -> tuple[FinishReason, Usage]:
        """Run one answer to its end. Ends early with "cancelled" at the next token once the event is set.

        Raises BackendError for what the client or the owner can mend, EngineLost where the process is of no
        more use; anything else is a bug or a crash.
        """

    def close(self) -> None:
        """Give back everything. Called once, when no run is under way."""


@runtime_checkable
class Embedder(Protocol):
    """A backend that makes embeddings too. Called from the same thread as `generate`."""

    def embed(
        self, params: EmbedParams, sink: Sink, cancelled: Cancellation
    ) -> tuple[FinishReason, Usage, list[bytes]]:
        """Return a vector for each input, as little-endian float32. Raises as `generate` does.

        All inputs are checked before the first is run. Reports progress to the sink's `prefill`. "cancelled"
        and no vectors once the event is set.
        """
