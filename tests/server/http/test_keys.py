"""Who gets in: keys, their file, the open server."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from server.app import create_app
from server.http.keyring import KeyRing
from server.http.keys import load_keys
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


def test_another_file_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    file, other = tmp_path / "keys", tmp_path / "new"
    file.write_text(line("home", "rk-one"))
    keys = KeyRing(file)
    status = file.stat()
    other.write_text(line("home", "rk-two"))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, file)
    assert (keys.name_of("rk-one"), keys.name_of("rk-two")) == (None, "home")


def test_a_key_written_over_in_place_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line("home", "rk-one"))
    keys = KeyRing(file)
    status = file.stat()
    file.write_text(line("home", "rk-two"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert (file.stat().st_ino, file.stat().st_size) == (status.st_ino, status.st_size)
    assert (keys.name_of("rk-one"), keys.name_of("rk-two")) == (None, "home")


@pytest.mark.parametrize("broken", [b"no key\n", b"\xff\xfe", b"home:abc\n"])
async def test_an_open_server_does_not_stay_open_when_its_file_is_broken(
    tmp_path: Path, broken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    async with serving(tmp_path / "served") as served:
        assert (await served.client.get("/v1/models")).status_code == 200
        (tmp_path / "rkserve").mkdir()
        (tmp_path / "rkserve" / "keys").write_bytes(broken)
        assert (await served.client.get("/v1/models")).status_code == 401
        (tmp_path / "rkserve" / "keys").unlink()
        assert (await served.client.get("/v1/models")).status_code == 401


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n"])
async def test_a_named_file_without_keys_lets_nobody_in_until_there_is_one(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    async with serving(tmp_path / "served", api_keys_file=file) as served:
        answer = await served.client.get("/v1/models")
        assert answer.status_code == 401
        assert "rkserve key add NAME" in answer.json()["error"]["message"]
        file.write_text(line("home", "rk-one"))
        bearer = {"authorization": "Bearer rk-one"}
        assert (await served.client.get("/v1/models", headers=bearer)).status_code == 200


@pytest.mark.parametrize("content", [None, ""])
async def test_the_users_own_file_asks_for_keys_from_the_first_one_on(
    tmp_path: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "rkserve" / "keys"
    if content is not None:
        file.parent.mkdir()
        file.write_text(content)
    async with serving(tmp_path / "served") as served:
        bearer = {"authorization": "Bearer rk-one"}
        assert (await served.client.get("/v1/models")).status_code == 200
        file.parent.mkdir(exist_ok=True)
        file.write_text(line("home", "rk-one"))
        assert (await served.client.get("/v1/models")).status_code == 401
        assert (await served.client.get("/v1/models", headers=bearer)).status_code == 200
        file.write_text("")  # the last key is revoked: that never opens a server
        assert (await served.client.get("/v1/models", headers=bearer)).status_code == 401
        file.unlink()
        assert (await served.client.get("/v1/models")).status_code == 401


@pytest.mark.parametrize("open_lan", [False, True])
def test_a_named_file_without_keys_does_not_let_the_network_in(tmp_path: Path, open_lan: bool) -> None:
    settings = Settings(host="0.0.0.0", api_keys_file=tmp_path / "keys", open_lan=open_lan)
    if open_lan:
        keys = load_keys(settings)
        assert keys is not None and keys.asked_for
    else:
        with pytest.raises(SettingsError, match=rf"rkserve key add NAME --file {tmp_path}/keys"):
            load_keys(settings)


@pytest.mark.parametrize("content", [b"broken line\n", b"\xff\xfe\n", None])
def test_a_broken_file_is_told_once_a_change_however_many_ask(
    tmp_path: Path, keys_file: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    ring = KeyRing(keys_file)
    caplog.set_level("INFO")
    keys_file.unlink()
    if content is None:
        keys_file.symlink_to(keys_file)  # cannot be looked at
    else:
        keys_file.write_bytes(content)
    for _ in range(5):
        assert ring.name_of("rk-one") is None
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    if content is not None:
        keys_file.write_bytes(content + content)
        assert ring.name_of("rk-one") is None
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) > 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"home:abc\n", "line 1 is not name:sha256-hex"),
        (b"\nrk-plain-key\n", "line 2 is not name:sha256-hex"),
        (b"\xff\xfe\n", "cannot be read"),
    ],
)
def test_a_bad_file_is_refused_at_start(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        KeyRing(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "plain-key" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "board.local"])
def test_an_open_server_on_the_network_must_be_wanted(
    tmp_path: Path, keys_file: Path, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry({})
    with pytest.raises(SettingsError, match=f"RKSERVE_HOST={host}: .*rkserve key add NAME.*RKSERVE_OPEN_LAN"):
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
