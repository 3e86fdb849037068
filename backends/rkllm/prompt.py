"""Prompts for a runtime that makes the tokens itself: one text in which clients can spell no control token.

Pure. The runtime turns every control token's spelling in a prompt into the token, whoever wrote it, and tells
nobody which there are. So in text from clients what looks like one is broken up with a zero-width joiner,
which readers do not see: the spellings that models share, and everything in angle brackets or the like that
the prompt's own template text uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from backends.base import Span

JOINER = "\u200d"

_COMMON = re.compile(
    r"<[|｜]"
    r"|<\w{1,32}\|>"
    r"|</?(?:s|bos|eos|pad|unk|mask|image|think|tools?|tool_call|tool_response|start_of_turn|end_of_turn"
    r"|start_of_image|end_of_image|image_soft_token|box|ref|quad|point)>"
    r"|\[/?(?:INST|SYS|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|IMG)\]"
    r"|<</?SYS>>"
)
_TAG = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{2,32}\]")


def flatten(prompt: Sequence[Span], control: Iterable[str] = ()) -> str:
    """Return a prompt as one text. `control`: further spellings to break up, such as the EOS strings.

    A NUL would end the text for the C library, so it becomes U+FFFD.
    """
    spelled = {match for span in prompt if span.control for match in _TAG.findall(span.text)}
    spelled.update(text for text in control if len(text) > 1)
    known = sorted(spelled, key=len, reverse=True)
    pattern = re.compile("|".join([*map(re.escape, known), _COMMON.pattern]))
    parts = []
    for from_template, spans in groupby(prompt, key=lambda span: span.control):
        text = "".join(span.text for span in spans)
        parts.append(text if from_template else pattern.sub(_broken, text))
    return "".join(parts).replace("\0", "\ufffd")


def _broken(match: re.Match[str]) -> str:
    return match[0][0] + JOINER + match[0][1:]
