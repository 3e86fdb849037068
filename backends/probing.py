"""What `rkserve doctor --deep` and a process of probes tell each other. Neutral: knows no engine.

A probe tries on a board one thing that the vendor's closed library may do either way. Messages go over a
stream socket as JSON, one a line. A probe process takes one `Plan` and answers with the rest.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from backends.base import ErrorCode, Span
from backends.spec import ModelSpec

Outcome = Literal["as assumed", "otherwise", "undecided", "failed"]
Value = str | int | float | bool | None
Figures = dict[str, Value | list[int]]


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes prompt with, rendered by the model's own template from questions of ours.

    chat, thinking: a short question, thinking off and on (None where the model has no thought). marks:
    control tokens as the template spells them. bos: the one every prompt of the template begins with, if any.
    think_marks: around a thought.
    """

    chat: list[Span]
    thinking: list[Span] | None = None
    marks: list[str] = []
    bos: str | None = None
    think_marks: tuple[str, str] | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only message to a probe process. probes: names, in the order to be run."""

    spec: ModelSpec
    texts: Texts
    probes: list[str]


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The library loads the model, which takes long. options: what differs from the entry."""

    options: dict[str, Value]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """It has. details: what its log says of itself and the model. lines: that log, the last lines."""

    details: dict[str, str]
    lines: list[str]


class NotLoaded(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be loaded as the entry says, so that there is nothing to probe; the process ends."""

    code: ErrorCode
    message: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """A probe has begun."""

    probe: str


class Finding(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a probe has found.

    outcome: whether the library does as the entry's keys, by default rkserve, assume. finding: what it does.
    meaning: what follows from it. settings: keys of the entry to set, dotted, with their values. figures: for
    whoever judges it later.
    """

    probe: str
    outcome: Outcome
    finding: str
    meaning: str = ""
    settings: dict[str, Value] = {}
    figures: Figures = {}


FromProbes = Loading | Loaded | NotLoaded | Started | Finding


def encode_line(message: Plan | FromProbes) -> bytes:
    """Return one message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode_plan(line: bytes) -> Plan:
    """Return the plan of a line. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(line, type=Plan)


def decode_message(line: bytes) -> FromProbes:
    """Return what a probe process said in a line. Raises msgspec.MsgspecError."""
    message: FromProbes = msgspec.json.decode(line, type=FromProbes)
    return message


class ProbeInfo(msgspec.Struct, frozen=True):
    """A probe's name and the question it answers."""

    name: str
    question: str


RKLLM_PROBES = (
    ProbeInfo("prompt_size", "Does the KV cache hold the prompt and all but the last token of the answer?"),
    ProbeInfo("bos", "Does the library put a BOS before prompts given as text?"),
    ProbeInfo("special_tokens", "Does it take control tokens spelled in prompts given as text for such?"),
    ProbeInfo("prefix_reuse", "Is a prompt's beginning that stands in the KV cache computed only once?"),
    ProbeInfo("reuse_after_edit", "Also where the new prompt leaves the old one before its end?"),
    ProbeInfo("stepwise_logits", "Do logits asked for token by token choose what generation chooses?"),
    ProbeInfo("abort", "Is all as before after an abort?"),
    ProbeInfo("idle_abort", "Does an abort that comes too late leave the next run alone?"),
    ProbeInfo("skip_special_token", "Do the marks around a thought reach us, and what does the key change?"),
    ProbeInfo("base_domain_id", "Does the model also load in another memory domain of the NPU?"),
    ProbeInfo("context_reserve", "How long may a prompt be, for a given context?"),
)
"""In the order in which they are run: what may spoil the library's state comes late, what loads anew last."""
