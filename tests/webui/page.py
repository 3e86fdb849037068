"""A page in a real Chromium, by way of node/driver.mjs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.serving import PATIENCE

STEP_MS = int(240_000 * PATIENCE)
"""How long one step may take: a page has its time, and answers of a model have theirs."""


class Page:
    """One page. Every step waits for what it needs to be there, and raises AssertionError after STEP_MS."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, method: str, *args: Any, selector: str | None = None) -> Any:
        """Call a method of Playwright's Page, or of its Locator where there is a selector."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"selector": selector, "method": method, "args": args}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the page's driver ended at {method} {selector}"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"{method} {selector}: {answer['error']}"
        return answer["value"]

    def click(self, selector: str) -> None:
        """Click on what a selector names."""
        self.call("click", selector=selector)

    def wait(self, selector: str) -> None:
        """Wait until something is seen."""
        self.call("waitFor", selector=f"{selector} >> nth=0")

    def wait_gone(self, selector: str) -> None:
        """Wait until something is no longer seen."""
        self.call("waitFor", {"state": "hidden"}, selector=f"{selector} >> nth=0")

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all that a selector names, as they are seen."""
        texts: list[str] = self.call("allInnerTexts", selector=selector)
        return texts

    def shoot(self, path: Path) -> None:
        """Take a picture of what is seen."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.call("screenshot", {"path": str(path), "animations": "disabled"})


@contextmanager
def open_page(driver: Sequence[str], browser: Path, directory: Path) -> Iterator[Page]:
    """Run a browser with a profile of its own until the block ends."""
    command = [*driver, str(directory / "profile"), str(browser), str(STEP_MS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield Page(process)
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
