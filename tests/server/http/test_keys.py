"""Who gets in: keys, their file, the open server."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from server.app import create_app
from server.http.keys import KeyRing
from server.registry import Registry
from server.settings import Settings, SettingsError
from tests.server.scripted import ScriptedDispatcher, serving


def line(name: str, key: str) -> str:
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}\n"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# our keys\n\n" + line("home", "rk-one") + line("web ui", "rk-zwei-ü"))
    return path


async def test_only_a_right_key_gets_in(tmp_path: Path, keys_file: Path) -> None:
    async with serving(tmp_path / "served", api_keys_file=keys_file) as served:
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": "Basic cms6cms="},
            {"authorization": "rk-one"},
            {"authorization": "Token rk-one"},
        ):
            response = await served.client.get("/v1/models", headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
            assert "x-request-id" in response.headers
        for wrong in ("rk-two", "rk-on", "x" * 10_000, "\xff\xfe", "#"):
            bearer = b"Bearer " + wrong.encode("latin-1")
            response = await served.client.get("/v1/models", headers={b"authorization": bearer})
            assert response.status_code == 401
        response = await served.client.get("/v1/models", headers={"authorization": "bearer rk-one"})
        assert response.status_code == 200
        response = await served.client.get("/nothing")
        assert response.status_code == 401


def test_a_digest_counts_to_its_last_digit(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"rk-one").hexdigest()
    for changed in (digest[:-1] + ("0" if digest[-1] != "0" else "1"), digest[:32] + "0" * 32):
        path = tmp_path / "keys"
        path.write_text(f"home:{changed}\n")
        assert KeyRing(path).name_of("rk-one") is None


async def test_open_paths_need_no_key(tmp_path: Path, keys_file: Path) -> None:
    async with serving(tmp_path / "served", api_keys_file=keys_file) as served:
        for path in ("/", "/health", "/ready"):
            assert (await served.client.get(path)).status_code == 200
        for path in ("/health/", "/v1/../health", "/openapi.json"):
            assert (await served.client.get(path)).status_code in (200, 401)
        assert (await served.client.get("/openapi.json")).status_code == 401


async def test_the_key_names_the_client(tmp_path: Path, keys_file: Path) -> None:
    async with serving(tmp_path / "served", api_keys_file=keys_file) as served:
        bearer = {b"authorization": "Bearer rk-zwei-ü".encode()}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        await served.client.post("/v1/chat/completions", json=body, headers=bearer)
        await served.client.post("/v1/chat/completions", json=body | {"user": "anna"}, headers=bearer)
        asked = [(job.client, job.user) for job in served.dispatcher.jobs]
        assert asked == [("web ui", ""), ("web ui", "anna")]


async def test_a_body_without_key_is_not_read(tmp_path: Path, keys_file: Path) -> None:
    async with serving(tmp_path / "served", api_keys_file=keys_file, max_body_mb=1) as served:
        response = await served.client.post("/v1/chat/completions", content=b"x" * (2 * 2**20))
        assert response.status_code == 401


async def test_keys_come_and_go_without_a_restart(tmp_path: Path, keys_file: Path) -> None:
    async with serving(tmp_path / "served", api_keys_file=keys_file) as served:

        async def status(key: str) -> int:
            response = await served.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            return response.status_code

        assert (await status("rk-one"), await status("rk-three")) == (200, 401)
        replacement = tmp_path / "new"
        replacement.write_text(line("third", "rk-three"))
        os.replace(replacement, keys_file)
        assert (await status("rk-one"), await status("rk-three")) == (401, 200)
        keys_file.write_text("broken line\n" + line("home", "rk-one"))
        assert (await status("rk-one"), await status("rk-three")) == (200, 401)
        keys_file.unlink()
        assert (await status("rk-one"), await status("rk-three")) == (401, 401)
        keys_file.write_text(line("home", "rk-one"))
        assert await status("rk-one") == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "holds no key"),
        (b"# nothing\n", "holds no key"),
        (b"home:abc\n", "line 1 is not name:sha256-hex"),
        (b"\nrk-plain-key\n", "line 2 is not name:sha256-hex"),
        (b"\xff\xfe\n", "cannot be read"),
    ],
)
def test_a_bad_file_is_refused_at_start(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        KeyRing(path)
    assert words in str(caught.value)
    assert "RKSERVE_API_KEYS_FILE" in str(caught.value)
    assert "plain-key" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "board.local"])
def test_an_open_server_on_the_network_must_be_wanted(
    tmp_path: Path, keys_file: Path, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry({})
    with pytest.raises(SettingsError, match="RKSERVE_OPEN_LAN"):
        create_app(Settings(host=host, models_dir=tmp_path), registry, dispatcher=ScriptedDispatcher())
    create_app(
        Settings(host=host, models_dir=tmp_path, api_keys_file=keys_file),
        registry,
        dispatcher=ScriptedDispatcher(),
    )
    assert caplog.text == ""
    create_app(
        Settings(host=host, models_dir=tmp_path, open_lan=True), registry, dispatcher=ScriptedDispatcher()
    )
    assert f"everyone who can reach {host}" in caplog.text


async def test_browsers_of_named_origins_may_call(tmp_path: Path, keys_file: Path) -> None:
    origin = "https://chat.home:3000"
    async with serving(tmp_path / "served", api_keys_file=keys_file, cors_origins=(origin,)) as served:
        asked = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        preflight = await served.client.options("/v1/chat/completions", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == origin
        other = await served.client.options(
            "/v1/chat/completions", headers=asked | {"origin": "https://evil.example"}
        )
        assert "access-control-allow-origin" not in other.headers
        refused = await served.client.get("/v1/models", headers={"origin": origin})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == origin
    async with serving(tmp_path / "closed", api_keys_file=keys_file) as served:
        preflight = await served.client.options("/v1/chat/completions", headers=asked)
        assert "access-control-allow-origin" not in preflight.headers
