"""Regular expressions from clients, for an engine whose time is linear in the text."""

from __future__ import annotations

from typing import Any

import re2

from server.errors import InvalidRequest


def compile_pattern(pattern: str, param: str) -> Any:
    """Return a compiled expression. Raises InvalidRequest for one that is wrong or has no such engine."""
    options = re2.Options()
    options.log_errors = False  # they would go to stderr, and with them what a client sent
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        why = error.args[0] if error.args else error
        said = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise InvalidRequest(
            f"{param}: the regular expression cannot be used ({said}); look-around and back references are "
            "not supported",
            param,
        ) from None
