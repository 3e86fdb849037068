"""A hub, or another rkserve, that tells what cannot be true: nothing it says becomes a path or a hang."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.store.hub_server import Hub, running_hub
from tests.store.little import REPO, entry, files, pull
from tests.store.test_repair import Home

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        running.repos = {REPO: {"Little_w8a8.rkllm": CONTENT}}
        yield running


@pytest.mark.parametrize(
    "name",
    [
        "LICENSE-x/../../../../../../evil",
        "LICENSE./../../.record.json",
        "LICENSE-a/.hidden",
        "NOTICE-\x1b[2J",
    ],
)
def test_no_name_of_a_licence_leads_out_of_its_folder(name: str, hub: Hub, tmp_path: Path) -> None:
    hub.repos[REPO] |= {name: b"evil\n", "LICENSE": b"Do good.\n"}
    hub.repos[REPO]["LICENSE-long"] = b"x" * 5_000_000
    hub.any_path = b"evil\n"  # a client takes the dots out of the path before it asks
    entry(tmp_path, tokenizer=None)
    before = {path for path in tmp_path.rglob("*")}
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert sorted(files(tmp_path)) == ["Little_w8a8.rkllm", "licenses/maker--Little-rkllm/LICENSE"]
    outside = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert not [path for path in outside if path.read_bytes() == b"evil\n"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha256", "../../../evil"),
        ("sha256", 5),
        ("size", "many"),
        ("size", -5),
        ("size", 1e300),
        ("size", 10**30),
    ],
)
def test_a_size_or_hash_that_is_none_is_refused(key: str, value: Any, hub: Hub, tmp_path: Path) -> None:
    changed = hub.listed_sha256 if key == "sha256" else hub.listed_sizes
    changed["Little_w8a8.rkllm"] = value
    entry(tmp_path, tokenizer=None)
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert (
        "which cannot be" in done.stderr or "not enough room" in done.stderr or "as a hub does" in done.stderr
    )
    assert not files(tmp_path, hidden=True)


def test_pieces_of_the_damage_under_the_right_hash_are_noticed(tmp_path: Path) -> None:
    good, bad = Home(tmp_path / "good"), Home(tmp_path / "bad")
    good.file.write_bytes(CONTENT)
    right = hashlib.sha256(CONTENT).hexdigest()
    for home in (good, bad):
        config = home.path / "config" / "rkserve" / "models.yaml"
        config.write_text(config.read_text() + f"    sha256: {right}\n")
    assert good.run("verify").returncode == 0
    damaged = b"x" + CONTENT[1:]
    bad.file.write_bytes(damaged)
    lying = good.file.parent / ".manifest.json"
    manifest = json.loads(lying.read_text())
    manifest["files"][0]["pieces"] = [hashlib.sha256(damaged).hexdigest()]
    lying.write_text(json.dumps(manifest))
    done = bad.repair(str(good.file.parent))
    assert done.returncode == 1
    assert "contradicts itself" in done.stderr
    assert bad.run("verify").returncode == 1


@pytest.mark.parametrize("there", [None, b"more"])
def test_an_empty_file_is_mended_too(there: bytes | None, tmp_path: Path) -> None:
    good, bad = Home(tmp_path / "good"), Home(tmp_path / "bad")
    for home in (good, bad):
        config = home.path / "config" / "rkserve" / "models.yaml"
        config.write_text(
            config.read_text().replace("backend: rkllm\n    file: m.rkllm", "backend: hybrid\n    folder: .")
        )
        (home.file.parent / "meta2.json").write_text('{"version": 2}')
        (home.file.parent / "vocab.txt").touch()
    assert good.run("verify").returncode == 0
    shutil.copy(good.file.parent / ".manifest.json", bad.file.parent)
    if there is None:
        (bad.file.parent / "vocab.txt").unlink()
    else:
        (bad.file.parent / "vocab.txt").write_bytes(there)
    done = bad.repair(str(good.file.parent), "--trust")
    assert done.returncode == 0
    assert (bad.file.parent / "vocab.txt").read_bytes() == b""
    assert bad.run("verify").returncode == 0


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Run a server that answers every request so, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with suppress(ConnectionError):
                answer(self)
            self.close_connection = True

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(404)
    handler.end_headers()
    while True:
        handler.wfile.write(b"no " * 100_000)


def to_itself(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("location", handler.path)
    handler.send_header("content-length", "0")
    handler.end_headers()


@pytest.mark.parametrize("answer", [endless, to_itself])
def test_an_address_that_answers_with_nonsense_ends_in_an_error(answer: Answer, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.file.write_bytes(CONTENT)
    right = hashlib.sha256(CONTENT).hexdigest()
    config = home.path / "config" / "rkserve" / "models.yaml"
    config.write_text(config.read_text() + f"    sha256: {right}\n")
    assert home.run("verify").returncode == 0
    home.file.write_bytes(b"x" + CONTENT[1:])
    with answering(answer) as url:
        done = home.repair(f"{url}/m.rkllm")
        assert done.returncode == 1
        done = home.repair(url)
        assert done.returncode == 1
        home.file.unlink()
        config.write_text(config.read_text() + f"    source: {{url: {url}/m.rkllm}}\n")
        done = home.run("pull", "mine")
        assert done.returncode == 1


@pytest.mark.parametrize("source", ["http://[::1", "http://", "http:///x", "https://h:port"])
def test_what_is_no_address_is_said(source: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.file.write_bytes(CONTENT)
    done = home.repair(source)
    assert done.returncode == 1
    assert "is no address" in done.stderr
