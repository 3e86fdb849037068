"""Nothing of a request becomes a path: what clients name is looked for in tables, never on the disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.http.raw import connected
from tests.server.scripted import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARK = "marked-by-the-client"
NAMES = [
    f"../{MARK}",
    f"../../../../../../etc/{MARK}",
    f"/etc/{MARK}",
    f"tiny/../../{MARK}",
    f"tiny\x00{MARK}",
    f"..\\..\\{MARK}",
    f"~/{MARK}",
    f"file:///etc/{MARK}",
    f"$({MARK})",
    f"`{MARK}`;{MARK}|{MARK}",
    f"%2e%2e%2f{MARK}",
    f"{{{{ '{MARK}' }}}}",
]
_seen: list[str] | None = None
_hooked = False


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event.split(".")[0] in ("open", "os", "subprocess", "shutil", "glob", "pathlib"):
        _seen.append(repr(arguments))


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Whatever this process asks of the file system meanwhile, or runs. The server is in this process."""
    global _hooked, _seen
    if not _hooked:
        sys.addaudithook(_audited)  # stays for good, so it does nothing outside these tests
        _hooked = True
    seen: list[str] = []
    stat = os.stat

    def watched(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        seen.append(repr(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", watched)  # Python tells its audit of everything but this
    _seen = seen
    yield seen
    _seen = None


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_a_name_in_a_body(served: Served, looked_for: list[str], name: str) -> None:
    refused = await served.chat(model=name)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    refused = await served.client.post("/v1/embeddings", json={"model": name, "input": name})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    answered = await served.chat(
        user=name,
        stop=[name],
        messages=[{"role": "user", "content": name, "name": name}],
        chat_template=name,
        chat_template_kwargs={"chat_template": name, "template": name},
        tools=[{"type": "function", "function": {"name": "f", "description": name}}],
        template=name,
        tokenizer=name,
        lora=name,
    )
    assert answered.status_code == 200
    (job,) = served.dispatcher.jobs
    assert [span.text for span in job.params[0].prompt if not span.control] == [name]
    assert looked_for, "the watch works: whether a model is installed is looked up"
    assert [path for path in looked_for if MARK in path] == []


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_a_name_in_a_path(served: Served, looked_for: list[str], name: str) -> None:
    escaped = "".join(f"%{byte:02X}" for byte in name.encode())
    for path in (f"/v1/models/{escaped}", f"/{escaped}", f"/v1/../{escaped}", f"/metrics/../{escaped}"):
        async with connected(served.port) as raw:
            await raw.send(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
            status, code = await raw.error()
            assert status == 404 and code in ("model_not_found", "not_found")
    assert [path for path in looked_for if MARK in path] == []


async def test_a_plain_path_upwards(served: Served) -> None:
    for path in ("/../../etc/passwd", "//etc/passwd", "/v1/models/../../../etc/passwd", "/..;/etc/passwd"):
        async with connected(served.port) as raw:
            await raw.send(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
            status, headers, body = await raw.response()
            assert status == 404 and b"root:" not in body
            assert headers["content-type"] == "application/json"
