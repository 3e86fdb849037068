"""The prompts of the oracle, as spans: template text in which control tokens count, and user text.

Pure data: read by the oracle's environment and by the tests. The second turn extends the first prompt and its
answer, so it is made when that answer is known. The prompts were chosen so that no answer ends within
ANSWER_TOKENS, and that the best token always leads the second by more than LEAST_MARGIN.
"""

from __future__ import annotations

from collections.abc import Iterator

Spans = list[tuple[str, bool]]  # text, and whether control tokens count in it

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
FIRST = "english"
SECOND = "second_turn"
FOLLOW_UP = "Thank you. Now write a short poem about rain."
ANSWER_TOKENS = 64
LEAST_MARGIN = 0.01

QUESTIONS = {
    FIRST: "Name three famous buildings in Paris and say one thing about each of them.",
    "chinese": "请用中文介绍一下北京这座城市的历史和文化。",
    "code": (
        "Explain what this function does:\n\n```python\ndef f(n: int) -> list[int]:\n"
        "    sieve = [True] * (n + 1)\n    for i in range(2, int(n ** 0.5) + 1):\n        if sieve[i]:\n"
        "            sieve[i * i :: i] = [False] * len(sieve[i * i :: i])\n"
        "    return [i for i in range(2, n + 1) if sieve[i]]\n```\n"
    ),
}
ONE_TOKEN: Spans = [("A", True)]


def chat(*turns: tuple[str, str]) -> Spans:
    """Return turns of (role, content) in the model's own ChatML, ready for the assistant's answer."""
    spans: Spans = [(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n", True)]
    for role, content in turns:
        spans += [(f"<|im_start|>{role}\n", True), (content, False), ("<|im_end|>\n", True)]
    return [*spans, ("<|im_start|>assistant\n", True)]


def first_prompts() -> Iterator[tuple[str, Spans]]:
    """Yield name and spans of the prompts that need no answer of another."""
    for name, question in QUESTIONS.items():
        yield name, chat(("user", question))
    yield "long", chat(("user", long_text()))
    yield "one_token", ONE_TOKEN


def second_turn(answer: str) -> Spans:
    """Return the prompt that goes on after the first one was answered."""
    return chat(("user", QUESTIONS[FIRST]), ("assistant", answer), ("user", FOLLOW_UP))


def long_text() -> str:
    """Return a text of some 600 tokens with a question at its end."""
    things = ["lamps", "kettles", "maps", "ropes", "anchors", "blankets", "oars", "lanterns", "barrels"]
    colours = ["red", "blue", "green", "yellow", "white"]
    places = ["by the door", "under the window", "behind the stove", "next to the stairs"]
    lines = [
        f"- Shelf {i}: {3 * i % 17 + 2} {colours[i % 5]} {things[i % 9]}, {places[i % 4]}"
        f" (checked on {i % 28 + 1:02d}/{i % 12 + 1:02d})."
        for i in range(1, 19)
    ]
    return (
        "The keeper of a lighthouse wrote down what lies in his store room before the winter came. "
        "He counted everything twice, since the boat would not come again before April.\n\n"
        + "\n".join(lines)
        + "\n\nHe also noted that two of the windows leak, that the stairs need a new rail, and that the "
        "lamp at the top burns one litre of oil in an hour.\n\n"
        "Write a letter from the keeper to his sister about the coming winter."
    )
