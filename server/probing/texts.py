"""What the probes prompt with: questions of ours in the model's own template. Pure."""

from __future__ import annotations

import re

from backends.base import Span
from backends.probing import Texts
from server.registry import Entry
from server.templates import Templates

_COUNT = "Write the numbers from one to twenty in words, separated by commas."
_COMPARE = "Which is larger, 9.11 or 9.9? Answer in one sentence."
_MARK = re.compile(r"<[^<>\s]{1,64}>")
_BOS = ("<s>", "<bos>", "<|startoftext|>", "<|begin_of_text|>")


def probe_texts(entry: Entry, templates: Templates) -> Texts:
    """Return the texts for an entry. Raises TemplateError, InvalidRequest."""
    thinks = entry.thinking is not None and "thinking" in entry.capabilities
    chat = templates.render(entry, [{"role": "user", "content": _COUNT}], thinking=False if thinks else None)
    thinking = None
    if thinks:
        thinking = templates.render(entry, [{"role": "user", "content": _COMPARE}], thinking=True)
    return Texts(
        chat=chat,
        thinking=thinking,
        marks=_marks(chat),
        bos=_bos(entry, chat),
        think_marks=(entry.thinking.open, entry.thinking.close) if thinks and entry.thinking else None,
    )


def _marks(prompt: list[Span]) -> list[str]:
    return list(dict.fromkeys(mark for span in prompt if span.control for mark in _MARK.findall(span.text)))


def _bos(entry: Entry, prompt: list[Span]) -> str | None:
    begin = prompt[0].text if prompt and prompt[0].control else ""
    own = entry.template_options.bos
    return next((bos for bos in (own, *_BOS) if bos and begin.startswith(bos)), None)
