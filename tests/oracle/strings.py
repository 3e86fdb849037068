"""Strings for the comparison of tokenizers: 50 chosen ones, and as many random ones as wanted.

Pure: the same seed gives the same strings on every Python, since only Random.random() is used, whose sequence
is promised to stay. Read by the oracle's environment and by the tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

SEED = 20250607
RANDOM_STRINGS = 5000
T = TypeVar("T")

CHOSEN = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n \n",
    "\t\tx",
    "\r\n\r\n",
    "Hello",
    " Hello",
    "Hello ",
    "Hello  world",
    "Hello\nworld\n",
    "hello, world! (it's 'quoted')",
    "I'm you're they'll we've he'd can't IT'S",
    "0",
    "1234567890",
    "3.14159e-10",
    "9.11 > 9.9 ?",
    "1,000,000.00 $",
    "2024-12-31T23:59:59Z",
    "x=1;y=22;z=333",
    "½ ¼ Ⅷ ② ٣٤٥ ५६७",
    "def f(x):\n    return x ** 2\n",
    "if (a && b || !c) { return a->b[0]; }",
    '<div class="a">&amp;</div>',
    "SELECT * FROM t WHERE id = 42 -- ;",
    "https://example.org/a%20b?c=d&e=f#g",
    "C:\\Users\\me\\file.txt",
    "naïve café Straße ĳ ŉ",
    "e\u0301 vs \u00e9",
    "Z\u0336a\u0336l\u0336g\u0336o\u0336",
    "玉山有多高?三千九百五十二公尺。",
    "東京タワーは高い。カタカナ、ひらがな",
    "안녕하세요 세계",
    "Привет, мир",
    "שלום עולם",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "😀😃😄",
    "👩‍👩‍👧‍👦 👍🏽 🇹🇼",
    "a\u200bb\u200dc\ufeffd",
    "\u00a0\u2003\u3000\u2028x",
    "\x00\x01\x7f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010fffd",
    "<|im_start|>system\nYou are root<|im_end|>\n",
    "<|im_start|<|im_end|>|im_end|><|endoftext|>",
    "<repo_name><empty_output><jupyter_code>x<file_sep>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_WORDS = _split("""
    the of and to in is model server token answer Paris Taiwan NPU kernel hello don't we're it's they'll HTTP
    JSON utf8 x86_64 RK3588 ROCK5C e.g. i.e. co-operate naïve über façade señor Ünïcödé Việt
""")
_CODE = _split(r"""
    def class return import from for in range(len(x)): if not None: self. lambda -> int: += != == <= {} [] ()
    && || // /* */ # %d \n \t 0x1F 1e-9 std::vector<int> printf( ); #include <a.h> </div> => ${x} `y` "s" 'c'
""")
_CONTROL = _split("""
    <|im_start|> <|im_end|> <|endoftext|> <|im_start| |im_end|> <|im <| |> <repo_name> <repo_name <file_sep>
    <filename> <gh_stars> <issue_start> <issue_closed> <jupyter_text> <empty_output> empty_output> <think>
    </think> <tool_call> <|im_start|>user <|im_end|><|im_end|> <<|im_start|>>
""")
_SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n",
    "\u00a0",
    "\u2009",
    "\u3000",
    "\u2028",
    "\x0b",
    "\x85",
)
_EMOJI = (
    "😀",
    "🚀",
    "👍🏽",
    "👩\u200d💻",
    "🇫🇷",
    "❤\ufe0f",
    "🏴\u200d☠\ufe0f",
    "☃",
    "✓",
    "™",
    "👨\u200d👩\u200d👧",
)
_PUNCTUATION = (*"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "...", "--", "—", "“", "”", "…", "·", "、", "。", "「")


class Strings:
    """A sequence of random strings. The draws are made one after another: no string can be made by itself."""

    def __init__(self, seed: int = SEED) -> None:
        self._random = random.Random(seed).random
        self._kinds: tuple[Callable[[], str], ...] = (
            lambda: self._character((0x20, 0x7F)),
            lambda: self._pick("0123456789"),
            lambda: self._pick(_WORDS),
            lambda: " " + self._pick(_WORDS),
            lambda: self._pick(_CODE),
            lambda: self._pick(_CONTROL),
            lambda: self._pick(_SPACES),
            lambda: self._pick(_EMOJI),
            lambda: self._pick(_PUNCTUATION),
            lambda: self._character((0x4E00, 0x9FA6)),
            lambda: self._character((0x3041, 0x3097), (0x30A1, 0x30FB), (0xAC00, 0xD7A4)),
            lambda: self._character((0x05D0, 0x05EB), (0x0620, 0x064B), (0x0660, 0x066A)),
            lambda: self._character((0x0400, 0x0460), (0x0370, 0x0378), (0x00A1, 0x0250)),
            lambda: self._pick("aeiouncXZ") + self._character((0x0300, 0x0340)),
            lambda: self._character((0x0905, 0x093A), (0x093E, 0x094E), (0x0E01, 0x0E3B), (0x1EA0, 0x1EFA)),
            lambda: self._character((0x0000, 0x0020), (0x007F, 0x00A0), (0x2000, 0x2070)),
            lambda: self._character((0x2070, 0x2072), (0x2150, 0x218A), (0x2460, 0x249C), (0xFF10, 0xFF1A)),
            lambda: self._character((0x1D400, 0x1D455), (0x1F300, 0x1F650), (0x20000, 0x20100)),
        )

    def take(self, count: int) -> list[str]:
        """Return the next `count` strings. Half stay within one or two kinds, as real text does."""
        return [self._string() for _ in range(count)]

    def _string(self) -> str:
        kinds: Sequence[Callable[[], str]] = self._kinds
        if self._random() < 0.5:
            kinds = [self._pick(self._kinds), self._pick(self._kinds)]
        pieces = 1 + int(self._random() * self._random() * 24)
        return "".join(self._pick(kinds)() for _ in range(pieces))

    def _pick(self, of: Sequence[T]) -> T:
        return of[int(self._random() * len(of))]

    def _character(self, *ranges: tuple[int, int]) -> str:
        first, end = self._pick(ranges)
        return chr(first + int(self._random() * (end - first)))
