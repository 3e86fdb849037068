"""Repair between real rkserves, from addresses and disks: only what is damaged moves, nothing wrong stays."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.server.cli.command import COMMAND, environment, models_dir
from tests.serving import running_server
from tests.store.range_server import RangeHandler
from tests.store.relay import Relay, relay_to

PIECE = 16 * 2**20
SIZE = 4 * PIECE + 12_345
COMMAND_S = 600  # a gigabyte is read some times over, on a machine that may be busy
OVERHEAD = 20_000  # manifest and headers


class Home:
    """The home directory of one machine, with the model `mine`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = models_dir(path) / "mine" / "m.rkllm"
        config = path / "config" / "rkserve"
        config.mkdir(parents=True)
        (config / "models.yaml").write_text(
            "version: 1\nmodels:\n  mine:\n    aliases: [me]\n    backend: rkllm\n    file: m.rkllm\n"
            "    template: chatml\n    context_length: 64\n    memory_mb: 1\n    license: {id: MIT}\n"
        )
        self.file.parent.mkdir(parents=True)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.path,
            env=environment(self.path, **variables),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert "Traceback" not in done.stderr
        return done

    def repair(self, source: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("repair", "mine", "--from", source, "--json", *more, **variables)

    @property
    def partials(self) -> list[Path]:
        return list(self.file.parent.glob(".*.partial"))


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def damage(path: Path, count: int, seed: int) -> set[int]:
    """Change bytes at random places, as bad memory does; return the numbers of the pieces they are in."""
    source = random.Random(seed)
    size = path.stat().st_size
    offsets = source.sample(range(size), count)
    for offset in offsets:
        with path.open("rb") as file:
            file.seek(offset)
            (byte,) = file.read(1)
        write(path, offset, bytes([byte ^ source.randrange(1, 256)]))
    return {offset // PIECE for offset in offsets}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def two_homes(tmp_path: Path, size: int) -> tuple[Home, Home]:
    """Two machines with the same verified model, a sparse file with something in it."""
    good, bad = Home(tmp_path / "good"), Home(tmp_path / "bad")
    good.file.touch()
    os.truncate(good.file, size)
    source = random.Random(3)
    for _ in range(50):
        write(good.file, source.randrange(size - 100), source.randbytes(100))
    assert good.run("verify").returncode == 0
    subprocess.run(["cp", "-a", "--sparse=always", good.file.parent, bad.file.parent.parent], check=True)
    return good, bad


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Home]:
    return two_homes(tmp_path_factory.mktemp("two"), SIZE)


@pytest.fixture
def homes(pair: tuple[Home, Home]) -> tuple[Home, Home]:
    """Two machines with the same model, as it was."""
    good, bad = pair
    for path in (*bad.file.parent.iterdir(), bad.file.parent / ".record.json"):
        if path.is_file():
            path.unlink()
    subprocess.run(["cp", "-a", "--sparse=always", f"{good.file.parent}/.", bad.file.parent], check=True)
    return pair


@contextmanager
def served(home: Home, *arguments: str) -> Iterator[Relay]:
    """Run the rkserve of a machine, behind a cable that counts."""
    command = [sys.executable, "-P", "-m", "server.cli", "serve", *arguments]
    settings = environment(home.path)
    del settings["XDG_CONFIG_HOME"]  # the server's own, which is the same
    with (
        running_server(command, models_dir=models_dir(home.path), cwd=home.path, environment=settings) as url,
        relay_to(urlsplit(url).port or 0) as relay,
    ):
        yield relay


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.timeout(1800)
def test_a_hundred_damages_of_a_gigabyte_are_healed_by_moving_only_those_pieces(tmp_path: Path) -> None:
    good, bad = two_homes(tmp_path, 2**30)
    pieces = damage(bad.file, 100, seed=4)
    assert 40 < len(pieces) < 64
    assert bad.run("verify").returncode == 1
    with served(good) as relay:
        done = bad.repair(relay.url)
        assert done.returncode == 0, done.stderr
        assert 0 < relay.received_bytes - len(pieces) * PIECE < OVERHEAD + 300 * len(pieces)
    (row,) = json.loads(done.stdout)
    assert (row["state"], set(row["fetched_pieces"])) == ("mended", pieces)
    assert row["fetched_bytes"] == len(pieces) * PIECE
    assert f"{len(pieces)} pieces" in done.stderr
    assert sha256(bad.file) == sha256(good.file)
    assert bad.partials == []
    (listed,) = [one for one in json.loads(bad.run("models", "--json").stdout) if one["id"] == "mine"]
    assert not any("damaged" in warning for warning in listed["warnings"])


def test_what_is_whole_is_left_as_it_is(homes: tuple[Home, Home]) -> None:
    good, bad = homes
    before = bad.file.stat()
    with served(good) as relay:
        done = bad.repair(relay.url)
        assert relay.received_bytes < OVERHEAD
    assert done.returncode == 0
    assert (json.loads(done.stdout)[0]["state"], bad.file.stat().st_ino) == ("whole", before.st_ino)
    assert "mine is whole: nothing was fetched" in done.stderr


@pytest.mark.parametrize("wrong", ["shorter", "longer", "missing"])
def test_a_file_of_another_length_is_mended(wrong: str, homes: tuple[Home, Home]) -> None:
    good, bad = homes
    fetched = {"shorter": [1, 2, 3, 4], "longer": [4], "missing": [0, 1, 2, 3, 4]}[wrong]
    if wrong == "missing":
        bad.file.unlink()
    else:
        os.truncate(bad.file, PIECE + 5 if wrong == "shorter" else SIZE + PIECE)
    done = bad.repair(str(good.file.parent))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["fetched_pieces"] == fetched
    assert sha256(bad.file) == sha256(good.file)


def test_a_server_with_keys_wants_one(homes: tuple[Home, Home]) -> None:
    good, bad = homes
    damage(bad.file, 1, seed=5)
    key = good.run("key", "add", "other board").stdout.strip()
    try:
        with served(good) as relay:
            for path in ("manifest", f"files/{sha256(good.file)}"):
                assert httpx2.get(f"{relay.url}/v1/models/mine/{path}").status_code == 401
            refused = bad.repair(relay.url)
            assert refused.returncode == 1
            unusable = bad.repair(relay.url, RKSERVE_API_KEY="k\u00e9y")
            assert unusable.returncode == 1 and "a character that no key has" in unusable.stderr
            assert "asks for an API key" in refused.stderr and "RKSERVE_API_KEY" in refused.stderr
            done = bad.repair(f"{relay.url}/v1", RKSERVE_API_KEY=key)
        assert done.returncode == 0, done.stderr
        assert key not in done.stderr + done.stdout
    finally:
        (good.path / "config" / "rkserve" / "keys").unlink()
    assert sha256(bad.file) == sha256(good.file)


def test_a_connection_that_breaks_is_made_again(homes: tuple[Home, Home]) -> None:
    good, bad = homes
    pieces = damage(bad.file, 3, seed=6)
    with served(good) as relay:
        relay.break_after = PIECE // 2
        done = bad.repair(relay.url)
        assert done.returncode == 0, done.stderr
        assert relay.received_bytes < (len(pieces) + 1) * PIECE
    assert sha256(bad.file) == sha256(good.file)


def test_a_killed_repair_changes_nothing_and_is_gone_on_with(homes: tuple[Home, Home]) -> None:
    good, bad = homes
    for number in (0, 2, 4):
        write(bad.file, number * PIECE + 77, b"damage")
    before = sha256(bad.file)
    with served(good) as relay:
        relay.hold_after = PIECE + PIECE // 2  # the first piece has come, the second is on its way
        process = subprocess.Popen(
            [*COMMAND, "repair", "mine", "--from", relay.url], cwd=bad.path, env=environment(bad.path)
        )
        try:
            assert relay.reached.wait(120)
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
        assert sha256(bad.file) == before
        assert len(bad.partials) == 1
        relay.hold_after, relay.received_bytes = None, 0
        done = bad.repair(relay.url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["fetched_pieces"] == [2, 4]
    assert sha256(bad.file) == sha256(good.file)
    assert bad.partials == []


def test_a_copy_of_another_file_is_refused(homes: tuple[Home, Home], tmp_path: Path) -> None:
    good, bad = homes
    other = Home(tmp_path / "other")
    shutil.copy(good.file, other.file)
    write(other.file, 0, b"another version")
    assert other.run("verify").returncode == 0
    expected = sha256(good.file)
    record(bad, expected)
    damage(bad.file, 2, seed=7)
    before = sha256(bad.file)
    done = bad.repair(str(other.file.parent))
    assert done.returncode == 1
    assert f"its sha256 is {sha256(other.file)}, and should be {expected}" in done.stderr
    assert (sha256(bad.file), bad.partials) == (before, [])
    # Where nobody has told the hash, the owner decides.
    record(bad, None)
    done = bad.repair(str(other.file.parent))
    assert done.returncode == 1 and "--trust" in done.stderr
    assert bad.repair(str(other.file.parent), "--trust").returncode == 0
    assert sha256(bad.file) == sha256(other.file)


@pytest.mark.parametrize("form", ["a disk", "an address"])
def test_what_was_damaged_when_its_hash_was_taken_down_is_not_called_whole(form: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.file.write_bytes(b"damaged since it was copied here")
    copy = tmp_path / "m.rkllm"
    copy.write_bytes(b"as it was made")
    assert home.run("verify").returncode == 0  # nobody knows better
    if form == "a disk":
        done = home.repair(str(copy))
        assert done.returncode == 1 and "--trust" in done.stderr
        assert home.repair(str(copy), "--trust").returncode == 0
        assert home.file.read_bytes() == copy.read_bytes()
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    done = home.repair(f"http://127.0.0.1:{server.server_address[1]}/m.rkllm")
    server.shutdown()
    server.server_close()
    assert done.returncode == 1
    assert "nobody has told whether that was right" in done.stderr


def record(home: Home, expected: str | None) -> None:
    """Write down what a pull would have: the hash that the hub tells."""
    path = home.file.parent / ".record.json"
    files = {} if expected is None else {"m.rkllm": expected}
    path.write_text(json.dumps({"source": {"files": files}}))


def test_a_copy_that_is_damaged_itself_or_changes_is_noticed(homes: tuple[Home, Home]) -> None:
    good, bad = homes
    write(bad.file, PIECE + 1, b"damage here")
    write(bad.file, 3 * PIECE + 1, b"and here")
    before, original = sha256(bad.file), good.file.read_bytes()
    try:
        write(good.file, 3 * PIECE + 5, b"damage there")
        with served(good) as relay:
            done = bad.repair(relay.url)
        assert done.returncode == 1
        assert "piece 3 of m.rkllm is damaged at the copy, too, or was changed on the way" in done.stderr
        assert sha256(bad.file) == before
        os.truncate(good.file, PIECE)
        with served(good) as relay:
            done = bad.repair(relay.url)
        assert done.returncode == 1
        assert "it is damaged here" in done.stderr and str(good.path) not in done.stderr
    finally:
        good.file.write_bytes(original)
    done = bad.repair(str(good.file))  # a third copy: what came from the first is kept
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["fetched_pieces"] == [3]


def test_a_manifest_that_contradicts_itself_changes_nothing(homes: tuple[Home, Home], tmp_path: Path) -> None:
    good, bad = homes
    shutil.copytree(good.file.parent, tmp_path / "copy")
    lying = tmp_path / "copy" / ".manifest.json"
    manifest = json.loads(lying.read_text())
    write(tmp_path / "copy" / "m.rkllm", 5, b"lie")
    with (tmp_path / "copy" / "m.rkllm").open("rb") as file:
        manifest["files"][0]["pieces"][0] = hashlib.sha256(file.read(PIECE)).hexdigest()
    lying.write_text(json.dumps(manifest))
    before = sha256(bad.file)
    done = bad.repair(str(tmp_path / "copy"))
    assert done.returncode == 1
    assert "contradicts itself, so nothing was changed" in done.stderr
    assert (sha256(bad.file), bad.partials) == (before, [])


@pytest.mark.parametrize("form", ["a file", "a directory", "a file's address", "a directory's address"])
def test_plain_copies_without_an_rkserve(form: str, homes: tuple[Home, Home]) -> None:
    good, bad = homes
    pieces = damage(bad.file, 2, seed=8)
    directory = good.file.parent
    if form.endswith("address"):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(directory.parent)))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        source = f"http://127.0.0.1:{server.server_address[1]}/mine/"
        source += "" if "directory" in form else "m.rkllm"
    else:
        source = str(directory if "directory" in form else good.file)
    done = bad.repair(source)
    if form.endswith("address"):
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)[0]["fetched_pieces"]) == pieces
    assert sha256(bad.file) == sha256(good.file)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "other-board:8000",
            "there is no other-board:8000 here; another rkserve is named as http://other-board:8000",
        ),
        ("/nowhere/at/all", "there is no /nowhere/at/all here"),
        ("http://127.0.0.1:1", "127.0.0.1:1 cannot be reached, or breaks off"),
    ],
)
def test_a_copy_that_is_not_there(source: str, said: str, homes: tuple[Home, Home]) -> None:
    done = homes[1].repair(source)
    assert done.returncode == 1
    assert said in done.stderr


def test_nothing_of_a_request_becomes_a_path(homes: tuple[Home, Home]) -> None:
    good, _ = homes
    secret = good.path / "config" / "rkserve" / "models.yaml"
    with served(good) as relay:
        base = f"{relay.url}/v1/models"

        def ask(path: str, **headers: str) -> httpx2.Response:
            return httpx2.get(f"{base}/{path}", headers=headers)

        name = sha256(good.file)
        for path in (
            "mine/files/m.rkllm",
            "mine/files/..%2F..%2Fx",
            f"mine/files/{secret}",
            "mine/files/%2Fetc%2Fpasswd",
            "mine/files/" + "0" * 64,
            "..%2Fmine/manifest",
            "nothing/manifest",
        ):
            assert ask(path).status_code == 404, path
        assert ask("me/manifest").json() == ask("mine/manifest").json()  # an alias is the model
        part = ask(f"mine/files/{name}", range="bytes=5-104")
        assert (part.status_code, part.headers["content-range"]) == (206, f"bytes 5-104/{SIZE}")
        with good.file.open("rb") as file:
            file.seek(5)
            assert part.content == file.read(100)
        assert len(ask(f"mine/files/{name}", range=f"bytes={SIZE - 10}-").content) == 10
        for unusable in (f"bytes={SIZE}-", "bytes=-5", "bytes=0-1,2-3", "lines=1-2", "bytes=9-8"):
            refused = ask(f"mine/files/{name}", range=unusable)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request"), (
                unusable
            )
        head = httpx2.head(f"{base}/mine/files/{name}")
        assert (head.status_code, head.headers["content-length"]) == (200, str(SIZE))
        assert ask("mine").json()["id"] == "mine"
        (good.file.parent / ".manifest.json").rename(good.file.parent / "aside")
        try:
            missing: Any = ask("mine/manifest")
            assert missing.status_code == 404
            assert "`rkserve verify mine` makes one" in missing.json()["error"]["message"]
        finally:
            (good.file.parent / "aside").rename(good.file.parent / ".manifest.json")
