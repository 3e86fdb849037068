"""A service manager for one server: it listens where NOTIFY_SOCKET says, as systemd does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.scripted_server import command
from tests.sdk.servers import entry
from tests.serving import clean_environment, free_port

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 30.0


class Manager:
    """What the server has told, and the server itself: a process without a terminal, as a service is."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory = directory
        self.url = ""
        self.log = b""
        self.first: dict[str, str] = {}  # what it told when it was ready
        self.process: asyncio.subprocess.Process | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)

    async def told(self) -> dict[str, str]:
        """Return the next message, by its names."""
        loop = asyncio.get_running_loop()
        data = await asyncio.wait_for(loop.sock_recv(self._socket, 65536), PATIENCE_S)
        return dict(line.split("=", 1) for line in data.decode().split("\n"))

    async def told_of(self, name: str) -> dict[str, str]:
        """Return the next message with this name, whatever comes before."""
        while name not in (message := await self.told()):
            pass
        return message

    def drain(self) -> int:
        """Forget what was told and not read; return how much that was."""
        number = 0
        while True:
            try:
                self._socket.recv(65536)
            except BlockingIOError:
                return number
            number += 1

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> int:
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)

    def install(self, **models: dict[str, Any]) -> None:
        """Write models.yaml with these models, each with keys that differ from a plain entry's."""
        template = self.directory / "only-the-message.jinja"
        template.write_text("{{ messages[-1].content }}")
        entries = {}
        for name, keys in models.items():
            folder = self.directory / name / "folder"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "meta2.json").write_text("{}")
            entries[name] = {**entry(), "template": str(template), "context_length": 100_000, **keys}
        self.write(yaml.safe_dump({"version": 1, "models": entries}))

    def write(self, models: str) -> None:
        (self.directory / "models.yaml").write_text(models)

    async def reload(self) -> str:
        """Have models.yaml read again; return what the log says of it."""
        before = len(self.log)
        self.signal(signal.SIGHUP)
        assert "MONOTONIC_USEC" in await self.told_of("RELOADING")
        await self.told_of("READY")
        async with asyncio.timeout(PATIENCE_S):
            while b"models.yaml was" not in self.log[before:]:
                await asyncio.sleep(0.01)  # another process writes it
        return self.log[before:].decode()

    async def ask(self, model: str, commands: str, **keys: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=self.url, timeout=PATIENCE_S) as client:
            message = {"role": "user", "content": commands}
            return await client.post(
                "/v1/chat/completions", json={"model": model, "messages": [message], **keys}
            )

    async def says(self, model: str, commands: str) -> str:
        answer = await self.ask(model, commands)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text


@asynccontextmanager
async def managed(
    directory: Path, address: str = "", watchdog_s: float | None = None, **settings: str
) -> AsyncIterator[Manager]:
    """Run a server of scripted workers under a manager that waits until it is ready."""
    address = address or str(directory / "notify")
    manager = Manager(directory, address)
    port = free_port()
    manager.url = f"http://127.0.0.1:{port}"
    manager.install(one={})
    values = {
        "PORT": str(port),
        "MODELS_DIR": str(directory),
        "MODELS_FILE": str(directory / "models.yaml"),
        "SHUTDOWN_GRACE_S": "0.5",
    } | settings
    environment = clean_environment(
        PYTHONPATH=str(ROOT),
        NOTIFY_SOCKET=address,
        **({} if watchdog_s is None else {"WATCHDOG_USEC": str(int(watchdog_s * 1e6))}),
        **{f"RKSERVE_{name}": value for name, value in values.items()},
    )
    reading, writing = os.pipe()
    status = os.fstat(writing)
    environment["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
    manager.process = process = await asyncio.create_subprocess_exec(
        *command("tests.server.workers.scripted"),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        start_new_session=True,
    )
    os.close(writing)
    loop = asyncio.get_running_loop()
    os.set_blocking(reading, False)

    def read() -> None:
        data = os.read(reading, 65536)
        manager.log += data
        if not data:
            loop.remove_reader(reading)

    loop.add_reader(reading, read)
    try:
        manager.first = await manager.told_of("READY")
        yield manager
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(reading)
        os.close(reading)
        manager._socket.close()
        print(manager.log.decode(errors="replace"), file=sys.stderr)
