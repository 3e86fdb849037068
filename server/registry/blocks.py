"""The nested blocks of a registry entry, one class each. Pure values: no file is looked at here.

Unknown keys are refused everywhere. Numbers are strict (a quoted number is text), and what YAML 1.1 makes of
`on` and `off` is accepted wherever the words are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
)

from backends.spec import CoreMask, HybridExecutor, HybridOptions, KvDtype, PixelDtype, PixelLayout, Resize
from server.names import MODEL_ID, MODEL_ID_RULE, MODEL_NAME, MODEL_NAME_RULE
from server.registry.template_names import BUILTIN_TEMPLATES, MODEL_TEMPLATE

_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_URL = re.compile(r"https?://[^\s/]+/\S+")

# Tags of unions; they turn up in pydantic's locations and are taken out of them by `problems`.
UNION_TAGS = frozenset({"a repo", "a package", "a url", "a path"})


def _pattern(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"must be {what}")
        return value

    return AfterValidator(check)


def _whole_characters(value: str) -> str:
    """Refuse what YAML's "\\ud800" makes: half of a character, which nothing can write or send."""
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("must not hold half of a character (U+D800 to U+DFFF)")
    return value


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise ValueError('must be a version specifier such as "==1.3.1" or ">=1.3,<1.4"') from None
    return value


def relative_or_absolute(value: str) -> str:
    """Check a path of an entry: absolute, or one that stays in the directory it is relative to."""
    if not _whole_characters(value) or "\0" in value:
        raise ValueError("must be a path")
    if not value.startswith("/") and ".." in value.split("/"):
        raise ValueError('must stay in the model\'s directory (no ".."), or be absolute')
    return value


def _folder(value: str) -> str:
    """Check a path as above, or one that means the folder of another entry: ../ID."""
    if shared_with(value) is not None:
        return value
    try:
        return relative_or_absolute(value)
    except ValueError as error:
        raise ValueError(f"{error}; ../ID is the folder of another entry") from None


def shared_with(folder: str) -> str | None:
    """Return the id of the entry whose folder is meant, None for a path of its own."""
    name = folder.removeprefix("../")
    return name if name != folder and re.fullmatch(MODEL_ID, name) else None


def _template(value: str) -> str:
    if value in BUILTIN_TEMPLATES or value == MODEL_TEMPLATE:
        return value
    if value.endswith(".jinja"):
        return relative_or_absolute(value)
    near = difflib.get_close_matches(value, sorted(BUILTIN_TEMPLATES), n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    names = ", ".join(sorted(BUILTIN_TEMPLATES))
    raise ValueError(f'must be "{MODEL_TEMPLATE}", a path to a .jinja file, or built in: {names}{hint}')


def _on_off(value: object) -> object:
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


def _off_word(value: object) -> object:
    return "off" if value is False else value


def _eos_token(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError("must be the token's text in quotes, or its id")
    if isinstance(value, int) and not 0 <= value < 2**31:
        raise ValueError(f"must be an id from 0 to {2**31 - 1}")
    return _whole_characters(value) if isinstance(value, str) else value


ModelId = Annotated[str, _pattern(MODEL_ID, f"an id: {MODEL_ID_RULE}")]
Alias = Annotated[str, _pattern(MODEL_NAME, f"a name: {MODEL_NAME_RULE}")]
RelPath = Annotated[str, AfterValidator(relative_or_absolute)]
FolderPath = Annotated[str, AfterValidator(_folder)]
Sha256 = Annotated[
    str,
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    _pattern(_SHA256, "64 hexadecimal digits"),
]
Template = Annotated[str, AfterValidator(_template)]
Specifier = Annotated[str, AfterValidator(_specifier)]
Text = Annotated[str, Field(min_length=1), AfterValidator(_whole_characters)]
Switch = Annotated[bool, BeforeValidator(_on_off), Strict()]
Flag = Annotated[bool, Strict()]
PositiveInt = Annotated[int, Strict(), Field(gt=0, lt=2**31)]
NotNegativeInt = Annotated[int, Strict(), Field(ge=0, lt=2**31)]
NotNegative = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Penalty = Annotated[float, Strict(), Field(ge=-2, le=2)]
EosToken = Annotated[str | int, BeforeValidator(_eos_token)]


class Block(BaseModel):
    """Base of every block: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HubSource(Block):
    """A repository on the hub, at a branch, tag or commit."""

    repo: Annotated[str, _pattern(_REPO, "owner/name")]
    revision: Annotated[str, _pattern(_REVISION, "a branch, tag or commit")] = "main"


class PackageSource(Block):
    """A file inside a wheel of the package index."""

    package: Annotated[str, _pattern(MODEL_ID, "a package's name")]
    version: Annotated[str, _pattern(MODEL_ID, 'an exact version, such as "0.1.2"')]
    file: RelPath


class UrlSource(Block):
    """A file somewhere else."""

    url: Annotated[str, _pattern(_URL, "a http or https address of a file")]


def _source_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "a path"
    if isinstance(value, BaseModel):
        value = value.model_dump()
    keys = value.keys() if isinstance(value, Mapping) else ()
    return next((f"a {kind}" for kind in ("repo", "package", "url") if kind in keys), None)


Source = Annotated[
    Annotated[HubSource, Tag("a repo")]
    | Annotated[PackageSource, Tag("a package")]
    | Annotated[UrlSource, Tag("a url")],
    Discriminator(
        _source_kind,
        custom_error_type="union",
        custom_error_message="must be a block with repo, package or url",
    ),
]
Tokenizer = Annotated[
    Annotated[HubSource, Tag("a repo")] | Annotated[RelPath, Tag("a path")],
    Discriminator(
        _source_kind, custom_error_type="union", custom_error_message="must be a block with repo, or a path"
    ),
]


class TemplateOptions(Block):
    """What a built-in template leaves open. bos: put before everything; default_system: for chats without."""

    bos: str | None = None
    default_system: str | None = None


class Thinking(Block):
    """How the model thinks. default: whether it does when a request does not say.

    switch: the template's variable that turns it on and off, None where nothing does. open, close: the marks
    around the reasoning in the answer.
    """

    default: Switch
    switch: Text | None = None
    open: Text = "<think>"
    close: Text = "</think>"


class Tools(Block):
    """The dialect the model writes tool calls in."""

    format: Literal["hermes", "function_xml", "param_xml", "lfm", "llama3", "json"]


class SamplingDefaults(Block):
    """Sampling for requests that do not choose. What is left out is neutral: it changes nothing."""

    temperature: Annotated[float, Strict(), Field(ge=0, le=5)] = 1.0
    top_p: Annotated[float, Strict(), Field(gt=0, le=1)] = 1.0
    top_k: NotNegativeInt = 0
    min_p: Share = 0.0
    repeat_penalty: Annotated[float, Strict(), Field(gt=0, le=5)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0


class Lora(Block):
    """An adapter on another entry's model, whose worker it shares."""

    base: ModelId
    file: RelPath
    scale: Annotated[float, Strict(), Field(allow_inf_nan=False)] = 1.0


class RkllmBlock(Block):
    """Options of librkllmrt. cpus: cores for the parts on the CPU; n_keep -1: keep the whole prompt.

    From input on: what the closed library does, see backends.spec.RkllmOptions; the probes of
    `rkserve doctor --deep` tell when to set them.
    """

    base_domain_id: NotNegativeInt = 0
    cpus: Annotated[tuple[Annotated[int, Strict(), Field(ge=0, le=7)], ...], Field(min_length=1)] = (
        4,
        5,
        6,
        7,
    )
    embed_flash: Flag = True
    n_keep: Annotated[int, Strict(), Field(ge=-1)] = -1
    skip_special_token: Flag = False
    input: Literal["auto", "text"] = "auto"
    runtime_bos: Text | None = None
    last_token_cached: Flag = False
    clear_after_abort: Flag = False
    context_reserve: Annotated[int, Strict(), Field(ge=0, le=1024)] = 4
    measure_prompts: Flag = True
    prompt_cache: Flag = False
    structured: Annotated[Literal["off", "best_effort"], BeforeValidator(_off_word)] = "off"
    lora: Lora | None = None


_HYBRID = HybridOptions()


class HybridBlock(Block):
    """Options of the hybrid engine, checked; what they mean and their defaults are of HybridOptions."""

    executor: HybridExecutor = _HYBRID.executor
    core_mask: CoreMask = _HYBRID.core_mask
    threads: Annotated[int, Strict(), Field(gt=0, le=256)] | None = _HYBRID.threads
    kv_dtype: KvDtype = _HYBRID.kv_dtype
    cache_mb: NotNegativeInt = _HYBRID.cache_mb
    variant: Text | None = _HYBRID.variant
    meta: RelPath | None = _HYBRID.meta


class Marks(Block):
    """Texts around an image in the prompt."""

    image: Text = "<image>"
    start: Text = "<|vision_start|>"
    end: Text = "<|vision_end|>"
    content: Text = "<|image_pad|>"


class Vision(Block):
    """The image encoder, a .rknn file, or an .onnx file where there is no NPU.

    size: width and height in pixels. mean, std: one a channel; None: compiled into the encoder.
    """

    file: RelPath
    runtime: Specifier | None = None
    size: tuple[PositiveInt, PositiveInt]
    layout: PixelLayout = "nhwc"
    dtype: PixelDtype = "uint8"
    mean: tuple[NotNegative, NotNegative, NotNegative] | None = None
    std: tuple[Positive, Positive, Positive] | None = None
    resize: Resize = "square_pad"
    marks: Marks = Marks()


class Embeddings(Block):
    """How hidden states become one vector.

    instruction: put before queries. append: put after every input, as the control token it spells.
    matryoshka: the model was trained for shorter vectors too, so that clients may choose `dimensions`.
    """

    pooling: Literal["last", "mean", "cls"] = "last"
    normalize: Flag = True
    instruction: Text | None = None
    append: Text | None = None
    matryoshka: Flag = False


class License(Block):
    """Licence of the weights. accept: pull asks whoever pulls to accept it."""

    id: Text
    url: Annotated[str, _pattern(_URL, "a http or https address")] | None = None
    notice: Text | None = None
    attribution: Text | None = None
    accept: Flag = False


class Measured(Block):
    """What was measured on the board of reference. score: of the seven questions, out of 7."""

    score: Annotated[float, Strict(), Field(ge=0, le=7)] | None = None
    tokens_per_s: Positive | None = None
    memory_gb: Positive | None = None
    remark: Text | None = None
