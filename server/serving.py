"""Runs the application: sockets, uvicorn, signals, and an end that keeps its time. Knows no route.

A signal stops the dispatcher at once, so that running answers have the grace time to end, while uvicorn
would first wait for its connections and only then tell the application.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

from server.addresses import network_urls, url_of
from server.app import create_app
from server.hangup import has_terminal, watch_terminal
from server.http.connection import LimitedConnection
from server.http.keys import check_keys
from server.logs import configure_logging, is_journal
from server.notify import Notifier
from server.registry import load_registry
from server.reload import Reloader
from server.settings import Settings, SettingsError
from server.status_line import status_line
from server.streams import tell
from server.supervision import Supervision

BACKLOG = 1024
KEEP_ALIVE_S = 30
MOST_FILES = 65536
FEWEST_FILES = 64
# After the grace time: for the dispatcher to end its workers, and for answers to reach their clients.
STOP_MARGIN_S = 1.0
DRAIN_S = 0.4
# What stopping takes at most beyond the grace time; a service manager is told.
STOP_EXTRA_S = 2.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve until a signal ends it. Raises SettingsError and RegistryError before anything is started."""
    configure_logging(settings.log_format, settings.log_level)
    _warn_of_missing_runtime_dirs(settings)
    run(create_app(settings, load_registry(settings)), settings)


def run(app: FastAPI, settings: Settings) -> None:
    """Run an application of these settings until a signal ends it.

    Raises SettingsError for a port in use, and where the system allows too few open files.
    """
    _raise_file_limit()
    notifier = Notifier.from_environment()
    sockets = listen(settings.host, settings.port, typed(settings))
    state = app.state.rkserve
    supervision = Supervision(notifier, lambda: status_line(state.registry, state.dispatcher))
    reloader = Reloader(settings, state.registry, state.dispatcher, state.templates, supervision)
    GracefulServer(server_config(app), settings, supervision, reloader.request).run(sockets)


def _warn_of_missing_runtime_dirs(settings: Settings) -> None:
    """Say which directories that somebody named are not there. No error: a disk may be mounted later."""
    missing = [str(path) for path in settings.runtime_dirs if not path.is_dir()]
    if missing and (given := settings.given("runtime_dirs")) is not None:
        does = "does" if len(missing) == 1 else "do"
        _log.warning(
            "%s: %s %s not exist, so no runtime library is found there", given, ", ".join(missing), does
        )


def check_start(settings: Settings) -> None:
    """Find out whether this server may listen and can, before long work. Raises SettingsError."""
    check_keys(settings)
    for listening in listen(settings.host, settings.port, typed(settings)):
        listening.close()


def server_config(app: FastAPI) -> uvicorn.Config:
    """Return how uvicorn is to run the application."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=LimitedConnection,
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def typed(settings: Settings) -> str:
    """Return the address as it was set, in the words of whoever set it."""
    given = [text for name in ("host", "port") if (text := settings.given(name))]
    return " ".join(given) or f"{settings.host}:{settings.port}"


def listen(host: str, port: int, typed: str | None = None) -> list[socket.socket]:
    """Return listening sockets for every address of the host. Raises SettingsError, saying why.

    typed: how to call the address in an error.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            # With port 0 the first address chooses the port for all.
            port = port or (sockets[0].getsockname()[1] if sockets else 0)
            both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
            sockets.append(
                socket.create_server(
                    (str(address[0]), port), family=family, backlog=BACKLOG, dualstack_ipv6=both
                )
            )
    except OSError as error:
        for opened in sockets:
            opened.close()
        typed = typed or f"RKSERVE_HOST={host} RKSERVE_PORT={port}"
        raise SettingsError([f"{typed}: cannot listen there ({_reason(error)}); {_cure(error)}"]) from None
    return sockets


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)  # its own text names the address once more


def _cure(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address; --host 0.0.0.0 stands for all it has"
    if error.errno == errno.EACCES:
        return "ports below 1024 are for root; choose another with --port"
    return "is another server running? Stop it, or choose another port with --port"


class GracefulServer(uvicorn.Server):
    """uvicorn's server with an end of our own. The first signal begins it, a second one ends the process."""

    def __init__(
        self,
        config: uvicorn.Config,
        settings: Settings,
        supervision: Supervision | None = None,
        reload: Callable[[], None] | None = None,
    ) -> None:
        """Take whom to report to, by default nobody, and what a SIGHUP without a terminal asks for."""
        super().__init__(config)
        self._grace_s = settings.shutdown_grace_s
        self._supervision = supervision or Supervision(Notifier(), lambda: "")
        self._reload = reload

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Listen to signals without raising them again at the end: an end that was asked for is a success."""
        loop = asyncio.get_running_loop()
        # One that is ignored (nohup, a shell's background jobs) stays so.
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)
        if self._reload is not None and signal.SIGHUP in handled and not has_terminal():
            # No terminal can have been closed: somebody wants models.yaml to be read again.
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        terminal = watch_terminal(loop, lambda: self._on_signal(signal.SIGHUP))
        try:
            yield
        finally:
            terminal.close()
            self._supervision.close()
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_hangup(self) -> None:
        if self._reload is not None and not self.should_exit:
            self._reload()

    def _on_signal(self, number: int) -> None:
        if not self.should_exit:
            _log.info("stopping: running answers have %g s; a second signal ends them now", self._grace_s)
            self.should_exit = True
            self._supervision.stopping(self._grace_s + STOP_EXTRA_S)
            return
        # The workers notice that their server is gone and end.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where the server is."""
        await super().startup(sockets)
        if not self.started or not sockets:
            return
        here, others = url_of(sockets[0]), network_urls(sockets)
        if is_journal(sys.stdout.fileno()):
            _log.info("ready at %s", ", ".join(f"{address}/v1" for address in (here, *others)))
        else:
            tell(sys.stdout, f"rkserve is ready at {here}/v1 (stop it with Ctrl+C)")
            for address in others:
                tell(sys.stdout, f"from other machines: {address}/v1")
        self._supervision.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, stop the dispatcher, let the last answers out, cut what is left."""
        state = self.server_state
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.lifespan.shutdown(), self._grace_s + STOP_MARGIN_S)
        await self._wait_for_answers(DRAIN_S)
        for connection in list(state.connections):
            connection.transport.abort()
        await self._wait_for_answers(DRAIN_S / 2)
        for task in list(state.tasks):
            task.cancel()

    async def _wait_for_answers(self, seconds: float) -> None:
        if self.server_state.tasks:
            await asyncio.wait(list(self.server_state.tasks), timeout=seconds)


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        raise SettingsError(
            [
                f"this process may have only {soft} files open (ulimit -n), and a server needs at least "
                f"{FEWEST_FILES}, one for each connection and some for each model; allow it 1024 or more"
            ]
        )
