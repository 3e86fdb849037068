"""How a model is loaded, and what it tells of itself then: what the server and the workers share of that.

msgspec structs, as in `base`. Knows no registry: the server makes these of an entry.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from backends.base import Span

HybridExecutor = Literal["auto", "onnxruntime", "rknn", "rknnlite"]
CoreMask = Literal["auto", "0", "1", "2", "0_1", "0_1_2", "all"]
KvDtype = Literal["fp32", "fp16"]
PixelLayout = Literal["nhwc", "nchw"]
PixelDtype = Literal["uint8", "float32"]
Resize = Literal["square_pad", "stretch"]

META_FILE = "meta2.json"  # describes a hybrid folder, and is what tells one from any other folder


class HybridOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `hybrid:` keys of a registry entry, and which runtime library the server has chosen for it.

    threads None: the engine's choice; meta: path of an overlay. library: absolute path of a librknnrt.so;
    without one, and with the executor auto, segments run on the CPU. runtime: the entry's key of this name.
    """

    executor: HybridExecutor = "auto"
    core_mask: CoreMask = "auto"
    threads: int | None = None
    kv_dtype: KvDtype = "fp32"
    cache_mb: int = 512
    variant: str | None = None
    meta: str | None = None
    library: str | None = None
    runtime: str | None = None


STOPPED_FILE = "stopped"
"""In a prompt cache's directory: whoever ended the worker that was making or loading it did so on purpose."""


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
    context_reserve: tokens of the context that prompts may not take. measure_prompts: where a text might be
    too long for its answer and only the library can count it, have it do so first.
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
    measure_prompts: bool = True
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
    layout: PixelLayout = "nhwc"
    dtype: PixelDtype = "uint8"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    resize: Resize = "square_pad"
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
