"""A TCP relay that counts what comes back through it, and can break off: the cable between two machines."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Relay:
    """received_bytes: from the server. break_after: bytes after which every connection is cut, once."""

    port: int = 0
    received_bytes: int = 0
    break_after: int | None = None
    reached: threading.Event = field(default_factory=threading.Event)
    hold_after: int | None = None

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"http://127.0.0.1:{self.port}"

    def _carry(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    self.received_bytes += len(data)
                    if self.hold_after is not None and self.received_bytes > self.hold_after:
                        self.reached.set()
                        return
                    if self.break_after is not None and self.received_bytes > self.break_after:
                        self.break_after = None
                        break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    """Run a relay to a port of the loopback until the block ends."""
    relay = Relay()
    sockets: list[socket.socket] = []
    carrying: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        relay.port = listening.getsockname()[1]

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    sockets.append(client)
                    server = socket.create_connection(("127.0.0.1", port))
                    sockets.append(server)
                    for source, target, counted in ((client, server, False), (server, client, True)):
                        thread = threading.Thread(target=relay._carry, args=(source, target, counted))
                        carrying.append(thread)
                        thread.start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield relay
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for end in sockets:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in carrying:
                thread.join()
            for end in sockets:
                end.close()
