"""Token ids into text while they arrive, never splitting a character.

Own bytes rather than the tokenizers library's decoder: they are needed for logprobs anyway, and a token's
text does not depend on its neighbours but for characters that several tokens share.
"""

from __future__ import annotations

import codecs

from backends.vocabulary import Vocabulary


class TextDecoder:
    """One answer's tokens as text. Control tokens are not shown. Not thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the text a token completes: none while a character is not whole, U+FFFD for stray bytes."""
        if self._vocabulary.is_special(token_id):
            return ""
        return self._utf8.decode(self._vocabulary.bytes_of(token_id))

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that never became whole."""
        return self._utf8.decode(b"", final=True)
