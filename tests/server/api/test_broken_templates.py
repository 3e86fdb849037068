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


FAULTS = {
    "counts": ("{# a line #}\n{{ range(10**9)|list }}", "counts further than 100000", 2),
    "macro": ("{% macro m() %}\n{{ m() }}{% endmacro %}\n{{ m() }}", "calls itself more than 64 deep", 2),
    "recursive": ("{% for i in [1] recursive %}\n{{ loop([1]) }}{% endfor %}", "more than 64 deep", 2),
    "lipsum": ("\n\n{{ lipsum(3) }}", "'lipsum', which is no function here", 3),
    "rare": ("{% if messages|length > 1 %}\n{{ nope() }}{% endif %}", "'nope', which is no function here", 2),
    "include": ("{% include '/etc/passwd' %}", "includes 'passwd', and a template is one file alone", 1),
    "import": ("\n{% import 'a.jinja' as a %}", "includes 'a.jinja'", 2),
    "attribute": ("{% for m in messages %}\n{{ m.no.such }}{% endfor %}", "cannot render any messages", 2),
    "division": ("{{ 1 // 0 }}", "ZeroDivisionError", 1),
}
# Where the template is fine with plain messages, or says itself what it does not take.
COMPLAINTS = {
    "roles": "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}",
    "shape": "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.no.such }}{% endif %}{% endfor %}",
    "number": "{{ 1 // (2 - messages|length) }}",
}
CONVERSATION = [{"role": "user", "content": "my secret"}, {"role": "assistant", "content": "Hello"}]


async def test_a_fault_of_the_template_is_not_blamed_on_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = [templated(tmp_path, name, template) for name, (template, _, _) in FAULTS.items()]
    async with serving(tmp_path, more=models) as served:
        for name, (_, reason, line) in FAULTS.items():
            response = await served.chat(model=name, messages=CONVERSATION)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "load_failed"), name
            assert reason in error["message"]
            assert f"{name}.jinja, line {line})" in error["message"]
            assert str(tmp_path) not in error["message"]
    assert "my secret" not in caplog.text


async def test_messages_that_the_template_does_not_take_are_the_client_s(tmp_path: Path) -> None:
    models = [templated(tmp_path, name, template) for name, template in COMPLAINTS.items()]
    async with serving(tmp_path, more=models) as served:
        for name in COMPLAINTS:
            response = await served.chat(model=name, messages=CONVERSATION)
            assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request"), name
            assert (await served.chat(model=name)).status_code == 200


async def test_a_folder_without_a_template(tmp_path: Path) -> None:
    bare = entry("bare", template="model", folder="bare")
    async with serving(tmp_path, more=[bare]) as served:
        message = (await served.chat(model="bare")).json()["error"]["message"]
        assert "bare holds no chat_template.jinja" in message
        assert "nor does RKSERVE_MODELS_DIR/bare." in message
        assert str(tmp_path) not in message
