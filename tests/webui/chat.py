"""Open WebUI's page as a person uses it: choose a model, write, read, stop."""

from __future__ import annotations

import json
from pathlib import Path

from tests.serving import PATIENCE
from tests.webui.recorder import Exchange
from tests.webui.rig import Rig

ANSWER_S = 600 * PATIENCE
CHAT_PATH = "/v1/chat/completions"
_ANSWERS = ".chat-assistant"
_STOP = "button[aria-label=Stop]"
_MODELS = "#model-selector-model-button"


class Chat:
    """A new conversation with a model. `since`: how many requests had been made when it began to speak."""

    def __init__(self, rig: Rig, model: str) -> None:
        self._page = rig.page
        self._recorder = rig.recorder
        self.since = 0
        self._page.call("goto", rig.home)
        self._dismiss_news()
        self._page.click(_MODELS)
        self._page.wait("[role=option]")
        options = "[...document.querySelectorAll('[role=option]')].map(option => option.dataset.value)"
        self.offered: list[str] = self._page.call("evaluate", options)
        self._page.click(f"[role=option][data-value='{model}']")
        self._page.wait(f"{_MODELS}:has-text('{model}')")

    def _dismiss_news(self) -> None:
        """Close the box about the version, which a fresh profile sees once the page is there."""
        self._page.wait(_MODELS)
        if self._page.call("evaluate", "localStorage.rkserveTests ?? ''") != "been here":
            self._page.click("text=Okay, Let's Go!")
            self._page.call("evaluate", "localStorage.rkserveTests = 'been here'")

    def attach(self, file: Path) -> None:
        """Put a file to the next message."""
        self.since = len(self._recorder.seen)
        self._page.call("setInputFiles", str(file), selector="input[type=file] >> nth=0")

    def say(self, text: str) -> None:
        """Send a message."""
        self.since = len(self._recorder.seen)
        self._page.click("#chat-input")
        self._page.call("insertText", text, selector="keyboard")
        self._page.call("press", "#chat-input", "Enter")

    def exchange(self) -> Exchange:
        """Return the last message's own request, once its answer is complete."""
        return self._recorder.wait(
            lambda seen: (
                seen.path == CHAT_PATH and b'"stream":true' in seen.body.replace(b" ", b"") and seen.complete
            ),
            self.since,
            ANSWER_S,
        )

    def task(self, words: str) -> Exchange:
        """Return the request for a title or the like whose prompt has these words, once it is answered."""
        return self._recorder.wait(
            lambda seen: seen.path == CHAT_PATH and words.encode() in seen.body and seen.complete,
            self.since,
            ANSWER_S,
        )

    def shows(self, text: str) -> None:
        """Wait until the last answer on the page has a text in it."""
        self._until(f"[...document.querySelectorAll('{_ANSWERS}')].at(-1)?.innerText.includes", text)

    def titled(self, title: str) -> None:
        """Wait until the conversation has a title, at the page's top and in the window's."""
        self._until("document.title.includes", title)

    def _until(self, includes: str, text: str) -> None:
        self._page.call("waitForFunction", f"{includes}({json.dumps(text)})")

    def rests(self) -> None:
        """Wait until the page waits for nothing more."""
        self._page.wait_gone(_STOP)

    def stop(self) -> str:
        """Press Stop once some text is there; return what is left of the answer."""
        self._page.call("waitForFunction", f"document.querySelector('{_ANSWERS}')?.innerText.length > 20")
        self._page.click(_STOP)
        self._page.wait_gone(_STOP)
        return self._page.texts(_ANSWERS)[-1]


def said(exchange: Exchange) -> str:
    """Return the text of a streamed answer."""
    events = exchange.answered["events"]
    return "".join(
        choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ())
    )
