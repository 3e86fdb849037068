"""With what every chat of a model begins, as far as no client has a say in it."""

from __future__ import annotations

from itertools import takewhile

from backends.base import Span
from server.errors import ApiError
from server.registry import Entry
from server.templates import Templates

# Nothing that two conversations with these have in common is theirs.
_ONE, _OTHER = "a", "1"


def fixed_prompt(entry: Entry, templates: Templates) -> list[Span]:
    """Return the beginning that all chats without a system message of their own share; may be none.

    A template that cannot be run gives none: what is wrong with it is said where it is needed.
    """
    try:
        one, other = (
            templates.render(entry, [{"role": "user", "content": content}]) for content in (_ONE, _OTHER)
        )
    except ApiError:
        return []
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
