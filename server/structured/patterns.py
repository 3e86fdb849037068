"""Regular expressions from clients, for an engine whose time is linear in the text."""

from __future__ import annotations

from typing import Any

import re2

from server.errors import InvalidRequest

LONGEST_PATTERN = 2_000
# Of a compiled one: enough for a hundred letters of any script (\p{L}{1,100}), and little enough for many.
MOST_BYTES = 1 << 21


def compile_pattern(pattern: str, param: str) -> Any:
    """Return a compiled expression.

    Raises InvalidRequest for one that is wrong or too large, or for which there is no such engine.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise InvalidRequest(
            f"{param}: a regular expression may have up to {LONGEST_PATTERN} characters", param
        )
    options = re2.Options()
    options.log_errors = False  # they would go to stderr, and with them what a client sent
    options.max_mem = MOST_BYTES
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
