"""Text that arrives as bytes in pieces, characters never split. Pure."""

from __future__ import annotations

import codecs


class Utf8Pieces:
    """Decodes pieces as they come. Not thread-safe; made anew for each answer.

    The library may hand out an incomplete character in two ways, and either is understood: its next piece
    goes on where the last one ended, or it repeats the incomplete bytes from their start. A continuation can
    never look like a repetition, since a character's first byte is none of those inside one.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, data: bytes) -> str:
        """Return the text that `data` completes; U+FFFD for bytes that are none."""
        pending: bytes = self._decoder.getstate()[0]
        if pending and data.startswith(pending):
            self._decoder.reset()
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)
