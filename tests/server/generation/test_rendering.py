"""Large prompts are rendered beside the event loop, small ones in it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from server.generation.service import LARGE
from server.templates import Templates
from tests.server.scripted import serving


@pytest.mark.parametrize(("length", "aside"), [(100, False), (LARGE, True)])
async def test_the_loop_renders_no_large_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, aside: bool
) -> None:
    threads: list[int] = []
    render = Templates.render

    def noted(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return render(*arguments, **options)

    monkeypatch.setattr(Templates, "render", noted)
    text = "a" * length
    async with serving(tmp_path) as served:
        assert (await served.chat(messages=[{"role": "user", "content": text}])).status_code == 200
        assert any(text in span.text for span in served.dispatcher.jobs[0].params[0].prompt)
    assert [thread != threading.get_ident() for thread in threads] == [aside]
