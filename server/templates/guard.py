r"""Text from clients in a disguise no template can mistake for its own. Knows no template and no message.

A prompt is made by a Jinja template, which mixes its own text with that of clients, and only the template's
own text may become control tokens. So before it goes into a template, every string of a client is *guarded*:
each UTF-16 unit of it moves to plane 15 of Unicode, where no control token and no template has characters.
White space stays as it is, so that trimming, splitting at line ends and folding blank lines work. Afterwards
the text in plane 15, with the white space inside it, is what clients wrote: `spans` moves it back and marks
it as plain. Text of clients that stands in plane 15 or 16 itself is not mistaken for guarded text: guarding
turns it into two units like any other character beyond U+FFFF.

An image's place is one character of plane 16, which no client can send past the guard, so that a template
carries it along as if it were text; `spans` makes it a span of its own.

White space at the ends of a guarded text counts as the template's, and white space of the template between
two guarded texts as theirs: neither can spell a control token. Templates see guarded text with a length in
UTF-16 units and without case, and looking for "<" in it finds nothing.

Guarding and moving back work on whole buffers: a megabyte takes some 10 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backends.base import Span

_PLANE = 0xF
_BASE = _PLANE << 16
_FIRST, _LAST = chr(_BASE), chr(_BASE + 0xFFFF)
_RUN = re.compile(rf"[{_FIRST}-{_LAST}](?:[\s{_FIRST}-{_LAST}]*[{_FIRST}-{_LAST}])?")
# There is no white space beyond U+FFFF.
_SPACES = [(chr(code), chr(_BASE + code)) for code in range(0x10000) if chr(code).isspace()]
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.$-]*")

# In plane 16, where guarding puts nothing: a character that a template can carry but no client can send.
SENTINEL = "\U00100000"
_FIRST_IMAGE = 0x100001
MOST_IMAGES = 4096  # that have a character
_IMAGE = re.compile(f"([{chr(_FIRST_IMAGE)}-{chr(_FIRST_IMAGE + MOST_IMAGES - 1)}])")


def guard(text: str) -> str:
    """Return `text` moved to plane 15, white space excepted. Lossless, save for lone surrogates."""
    units = text.encode("utf-16-le", "surrogatepass")
    wide = bytearray(2 * len(units))
    wide[0::4], wide[1::4] = units[0::2], units[1::2]
    wide[2::4] = bytes([_PLANE]) * (len(units) // 2)
    guarded = wide.decode("utf-32-le")
    for space, moved in _SPACES:
        if space in text:
            guarded = guarded.replace(moved, space)
    return guarded


def image_place(index: int) -> str:
    """Return the character that stands for an image in a template's input."""
    return chr(_FIRST_IMAGE + index)


def unguard(text: str) -> str:
    """Return `text` with all that is guarded in it moved back; the rest stays as it is."""
    return _RUN.sub(lambda run: _moved_back(run.group()), text)


def spans(rendered: str) -> list[Span]:
    """Cut a rendered prompt into text of the template (control), text of clients, moved back, and images."""
    return list(_spans(rendered))


def guard_name(text: str) -> str:
    """Return an identifier as it is, so that a template can compare it, and any other text guarded."""
    return text if _IDENTIFIER.fullmatch(text) else guard(text)


def guard_names(value: Any) -> Any:
    """Return a JSON value, such as a tool's schema, with all strings and keys put through `guard_name`."""
    return _mapped(value, guard_name)


def guard_all(value: Any) -> Any:
    """Return a JSON value with all its strings and keys guarded."""
    return _mapped(value, guard)


def unguard_all(value: Any) -> Any:
    """Return a JSON value with all its strings and keys moved back."""
    return _mapped(value, unguard)


def _moved_back(run: str) -> str:
    wide = run.encode("utf-32-le")
    units = bytearray(len(wide) // 2)
    units[0::2], units[1::2] = wide[0::4], wide[1::4]
    return units.decode("utf-16-le", "replace")  # a template may have cut a pair in two


def _spans(rendered: str) -> Iterator[Span]:
    end = 0
    for run in _RUN.finditer(rendered):
        if run.start() > end:
            yield from _control(rendered[end : run.start()])
        yield Span(_moved_back(run.group()), False)
        end = run.end()
    if end < len(rendered):
        yield from _control(rendered[end:])


def _control(text: str) -> Iterator[Span]:
    for index, piece in enumerate(_IMAGE.split(text)):
        if index % 2:
            yield Span("", True, ord(piece) - _FIRST_IMAGE)
        elif piece:
            yield Span(piece, True)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
