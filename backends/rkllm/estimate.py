"""How many tokens a text has, where only the runtime has the tokenizer. No I/O.

A guess from its characters, rather too many than too few; and how many it has at most, which is sure: an
answer's limit follows from it, and a context that overflows shifts. What a prompt really took is seen after
its run; a chat's next prompt begins as that one does, so that only what is new is guessed, or taken at its
worst.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left

# Vocabularies of today spell 4 to 5 letters of English with a token, but each digit with one of its own, and
# a blank before it with another; a sign mostly with one; a character of a script beyond Latin with one and a
# half at most; and what lies beyond the first 65,536 characters, as emoji do, byte by byte.
_LETTERS_PER_TOKEN = 3.5
_TOKENS_PER_SIGN = 0.8
_TOKENS_PER_OTHER = 1.2
_TOKENS_PER_RARE = 3.0
_DIGITS = b"0123456789"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
_KEPT = 16  # prompts: so many chats and their title requests may alternate
_UNCERTAIN = 1  # the measured size is right to within so many tokens
_ADDED = 8  # more than what a runtime puts before a text: a BOS, a blank
_WORTH_KEEPING = 64  # characters: of fewer that two prompts share it does not matter what they took


class Estimator:
    """Guesses, and learns from what was measured. May be used from any thread."""

    def __init__(self) -> None:
        self._known: tuple[tuple[str, int], ...] = ()  # the newest last

    def tokens(self, text: str) -> int:
        """Return about how many tokens a text has."""
        begin, tokens = max(
            (known for known in self._known if text.startswith(known[0])),
            key=lambda known: len(known[0]),
            default=("", 0),
        )
        return tokens + guess(text[len(begin) :])

    def knows(self, text: str) -> bool:
        """Return whether a text was measured."""
        return any(text == known for known, _ in self._known)

    def most(self, text: str) -> int:
        """Return how many tokens a text has at most, as the runtime will count them."""
        return min([_ADDED + most(text), *(_behind(text, *known) for known in self._known)])

    def learn(self, text: str, tokens: int) -> None:
        """Take note of how many tokens a prompt took. Call from one thread."""
        others = [known for known in self._known if known[0] != text]
        self._known = (*others[1 - _KEPT :], (text, tokens + _UNCERTAIN))


def guess(text: str) -> int:
    """Return about how many tokens a text has by its characters alone."""
    plain = text.encode("ascii", "ignore")
    letters = len(plain) - len(plain.translate(None, _LETTERS))
    digits = len(plain) - len(plain.translate(None, _DIGITS))
    blanks = sum(plain.count(b" %c" % digit) for digit in _DIGITS)
    rare = len(text.encode("utf-16-le", "surrogatepass")) // 2 - len(text)
    tokens = (
        (letters - blanks) / _LETTERS_PER_TOKEN
        + digits
        + blanks
        + (len(plain) - letters - digits) * _TOKENS_PER_SIGN
        + (len(text) - len(plain) - rare) * _TOKENS_PER_OTHER
        + rare * _TOKENS_PER_RARE
    )
    return int(tokens) + 1


def most(text: str) -> int:
    """Return how many tokens a text has at most: one a byte, as those have that fall back to bytes.

    Tokenizers may bring a text into a normal form of Unicode first, and one of those can be longer.
    """
    if text.isascii():
        return len(text)
    forms = (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text))
    return max(len(form.encode("utf-8", "replace")) for form in forms)


def _behind(text: str, known: str, tokens: int) -> int:
    """Return how many tokens a text has at most, where a known one begins in the same way.

    Tokens do not reach beyond a blank, so up to the last blank that both share the text has no more tokens
    than the known one in all.
    """
    if text == known:
        return tokens
    lengths = range(min(len(text), len(known)) + 1)
    shared = bisect_left(lengths, True, key=lambda length: text[:length] != known[:length]) - 1
    if shared < _WORTH_KEEPING:
        return _ADDED + most(text)
    begin = text[:shared].rstrip()
    return tokens + most(text[max(begin.rfind(" "), begin.rfind("\n"), 0) :])
