"""A model whose template is broken or malicious: it alone is refused, whatever the others do."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from server.registry import Entry
from tests.server.scripted import entry, serving


def templated(directory: Path, name: str, template: str) -> Entry:
    """Return a model with a template of its own."""
    path = directory / f"{name}.jinja"
    path.write_text(template)
    return entry(name, template=str(path))


async def test_a_template_that_does_not_compile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = templated(tmp_path, "broken", "{# a line #}\n{% for %}")
    with caplog.at_level(logging.ERROR, "server.app"):
        async with serving(tmp_path, more=[broken]) as served:
            (record,) = caplog.records
            assert "broken is not served" in record.getMessage()
            response = await served.chat(model="broken")
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "load_failed")
            assert "broken.jinja, line 2: the chat template does not compile" in error["message"]
            assert response.headers["x-should-retry"] == "false"
            assert (await served.chat(model="broken", stream=True)).status_code == 503
            assert (await served.chat()).status_code == 200
            (warning,) = (await served.client.get("/v1/models/broken")).json()["warnings"]
            assert "broken.jinja, line 2" in warning
            # Mended, it works without a new start.
            (tmp_path / "broken.jinja").write_text("{{ messages[0].content }}")
            assert (await served.chat(model="broken")).status_code == 200
            assert (await served.client.get("/v1/models/broken")).json()["warnings"] == []


async def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    gone = templated(tmp_path, "gone", "")
    (tmp_path / "gone.jinja").unlink()
    async with serving(tmp_path, more=[gone]) as served:
        response = await served.chat(model="gone")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "load_failed")
        assert "gone.jinja: the template of gone cannot be read" in response.json()["error"]["message"]
        assert (await served.chat()).status_code == 200


async def test_a_template_that_computes_without_end_holds_up_nobody(
    tmp_path: Path,
) -> None:
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    async with serving(tmp_path, more=[templated(tmp_path, "endless", loops)]) as served:
        endless = asyncio.ensure_future(served.chat(model="endless"))
        # It computes for 3 s of the processor, in which others are answered.
        assert (await served.chat()).status_code == 200
        assert not endless.done()
        response = await endless
        assert (response.status_code, response.json()["error"]["code"]) == (503, "load_failed")
        assert "does what no template may: it " in response.json()["error"]["message"]


async def test_a_template_that_complains_blames_the_messages(tmp_path: Path) -> None:
    strict = templated(tmp_path, "strict", "{{ raise_exception('Roles must alternate') }}")
    async with serving(tmp_path, more=[strict]) as served:
        response = await served.chat(model="strict")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
        assert "Roles must alternate" in response.json()["error"]["message"]
