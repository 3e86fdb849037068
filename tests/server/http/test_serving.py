"""The server as a process: where it says it is, how it ends, what it does when it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from server.addresses import network_urls, reachable, url_of
from server.serving import listen
from server.settings import SettingsError
from tests.scripted_server import command
from tests.sdk.servers import entry, write_registry
from tests.server.http.raw import RawConnection, connected, post
from tests.serving import clean_environment

ROOT = Path(__file__).resolve().parents[3]
GRACE_S = 0.5
IN_TIME_S = 30  # it promises the grace time and two seconds; a busy machine gets more


class Process:
    """A server process and its port."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Return the exit code; the server must end in the time it has."""
        return await asyncio.wait_for(self.process.wait(), IN_TIME_S)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def obedient(directory: Path) -> Path:
    """Install a model that does what the last message says, and return the models.yaml that names it."""
    folder = directory / "obedient" / "folder"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "meta2.json").write_text("{}")
    template = directory / "only-the-message.jinja"
    template.write_text("{{ messages[-1].content }}")
    return write_registry(
        directory, {"obedient": {**entry(), "template": str(template), "context_length": 100_000}}
    )


@asynccontextmanager
async def running(directory: Path, **settings: str) -> AsyncIterator[Process]:
    """Run a server of scripted workers; it is killed at the end if it still runs."""
    values = {
        "PORT": "0",
        "MODELS_DIR": str(directory),
        "MODELS_FILE": str(obedient(directory)),
        "SHUTDOWN_GRACE_S": str(GRACE_S),
    } | settings
    environment = clean_environment(
        PYTHONPATH=str(ROOT), **{f"RKSERVE_{name}": value for name, value in values.items()}
    )
    process = await asyncio.create_subprocess_exec(
        *command("tests.server.workers.scripted"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        said = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        found = re.fullmatch(
            r"rkserve is ready at http://127\.0\.0\.1:(\d+)/v1 \(stop it with Ctrl\+C\)\n", said
        )
        assert found, said
        yield Process(process, int(found[1]))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def ask(commands: str, *, stream: bool) -> bytes:
    message = {"role": "user", "content": commands}
    return post(json.dumps({"model": "obedient", "messages": [message], "stream": stream}).encode())


async def begun(raw: RawConnection) -> None:
    """Wait for the first text of a stream."""
    await asyncio.wait_for(raw.reader.readuntil(b"t0 "), 60)


async def workers_gone(workers: list[psutil.Process]) -> None:
    assert workers
    async with asyncio.timeout(5):
        while any(worker.is_running() for worker in workers):
            await asyncio.sleep(0.01)  # processes that are not ours to wait for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_in_time_whatever_connections_are_open(tmp_path: Path, number: signal.Signals) -> None:
    async with running(tmp_path) as server:
        port = server.port
        async with (
            connected(port) as silent,
            connected(port) as idle,
            connected(port) as uploading,
            connected(port) as streaming,
            connected(port) as unread,
            connected(port) as waiting,
        ):
            await idle.send(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await idle.response())[0] == 200
            await uploading.send(post(b"{", length=1000))
            await streaming.send(ask("endless delay:0.01", stream=True))
            await begun(streaming)
            await unread.send(ask("endless", stream=True))
            await waiting.send(ask("endless", stream=False))
            workers = server.workers()
            server.signal(number)
            assert await silent.rest() == b""
            assert await idle.rest() == b""
            assert await waiting.error() == (503, "server_busy")
            last = (await streaming.rest()).decode().rstrip("0\r\n").rsplit("data: ", 1)[1]
            assert json.loads(last.partition("\r\n")[0])["error"]["code"] == "server_busy"
            assert await server.ended() == 0
            await workers_gone(workers)


async def test_an_answer_under_way_ends_as_it_should(tmp_path: Path) -> None:
    async with running(tmp_path, SHUTDOWN_GRACE_S="60") as server, connected(server.port) as raw:
        await raw.send(ask("delay:0.05 tokens:10", stream=True))
        await begun(raw)
        server.signal()
        rest = await raw.rest()
        assert b"t9 " in rest
        assert b"data: [DONE]" in rest
        assert await server.ended() == 0


async def test_no_connection_is_taken_while_it_stops_and_a_second_signal_ends_it_now(tmp_path: Path) -> None:
    async with running(tmp_path, SHUTDOWN_GRACE_S="60") as server, connected(server.port) as raw:
        await raw.send(ask("endless", stream=True))
        await begun(raw)
        workers = server.workers()
        server.signal()
        with pytest.raises(httpx2.ConnectError):
            async with asyncio.timeout(5), httpx2.AsyncClient() as client:
                while True:
                    # One that the system had taken just before is reset: that is no answer either.
                    with contextlib.suppress(httpx2.ReadError, httpx2.RemoteProtocolError):
                        await client.get(f"http://127.0.0.1:{server.port}/health")
        server.signal()
        assert await server.ended() == -signal.SIGTERM
        await workers_gone(workers)


async def test_a_worker_that_dies_is_replaced_and_one_whose_server_dies_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        for stream in (True, False):
            async with connected(server.port) as raw:
                await raw.send(ask("kill:9", stream=stream))
                status, headers, body = await raw.response()
                assert (status, headers["x-should-retry"]) == (500, "false")
                assert json.loads(body)["error"]["code"] == "backend_crashed"
        async with connected(server.port) as raw:
            await raw.send(ask("tokens:1 kill:9", stream=True))
            await raw.reader.readuntil(b'"backend_crashed"')
        async with connected(server.port) as raw:
            await raw.send(ask("tokens:2", stream=False))
            status, _, body = await raw.response()
            answer = json.loads(body)
            assert (status, answer["choices"][0]["message"]["content"]) == (200, "t0 t1 ")
            assert answer["system_fingerprint"] == "hybrid-scripted-1"
        workers = server.workers()
        server.signal(signal.SIGKILL)
        await server.ended()
        await workers_gone(workers)


def test_a_port_that_is_taken_is_said_plainly() -> None:
    (taken,) = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    try:
        with pytest.raises(SettingsError, match=rf"RKSERVE_PORT={port}: cannot listen there .*--port"):
            listen("127.0.0.1", port)
    finally:
        taken.close()


def test_a_host_that_is_not_ours_is_said_plainly() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(SettingsError, match="cannot listen there"):
            listen(host, 0)


def test_the_url_is_one_to_open() -> None:
    for host, shown in (("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")):
        (listening,) = listen(host, 0)
        assert url_of(listening).startswith(shown)
        listening.close()


def test_the_addresses_for_other_machines_are_those_they_can_use() -> None:
    found = reachable(
        {
            "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
            "eth0": [
                (socket.AF_INET, "192.168.1.5"),
                (socket.AF_INET6, "fd00::2"),
                (17, "02:fc:00:00:00:01"),
            ],
            "wlan0": [(socket.AF_INET6, "fe80::fc:ff:fe00:1%wlan0"), (socket.AF_INET, "169.254.3.4")],
            "docker0": [(socket.AF_INET, "172.17.0.1")],
            "br-12ab": [(socket.AF_INET, "172.18.0.1")],
        }
    )
    assert [str(address) for address in found] == ["192.168.1.5", "fd00::2"]


@pytest.mark.parametrize("call", ["net_if_stats", "net_if_addrs"])
def test_a_system_that_does_not_tell_its_interfaces_ends_no_server(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError(errno.ENOSYS, "Function not implemented (originated from ioctl(SIOCETHTOOL))")

    told = network_urls(sockets := listen("0.0.0.0", 0))
    monkeypatch.setattr(psutil, call, refused)
    known = network_urls(sockets)
    sockets[0].close()
    assert set(known) >= set(told) if call == "net_if_stats" else known == []


def test_a_server_of_all_addresses_names_them_and_one_of_the_loopback_none() -> None:
    """What the kernel says this machine sends from is among them; IPv4 comes first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
            own = probe.getsockname()[0]
        except OSError:
            own = None
    for host in ("0.0.0.0", "::", "127.0.0.1", "::1"):
        try:
            sockets = listen(host, 0)
        except SettingsError:
            continue  # no IPv6 here
        port = sockets[0].getsockname()[1]
        urls = network_urls(sockets)
        for listening in sockets:
            listening.close()
        if host in ("127.0.0.1", "::1"):
            assert urls == []
        elif own is not None and (host == "0.0.0.0" or socket.has_dualstack_ipv6()):
            assert f"http://{own}:{port}" in urls
            assert urls == sorted(urls, key=lambda url: "[" in url)
