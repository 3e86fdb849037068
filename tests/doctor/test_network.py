"""What the doctor says of port, network and keys, asked of real sockets."""

from __future__ import annotations

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from server.doctor.finding import Finding
from tests.doctor.machines import PC, ROCK_5C, Machine
from tests.doctor.test_checks import House, found

KEY = f"laptop:{hashlib.sha256(b'rk-x').hexdigest()}\n"


def rows(tmp_path: Path, machine: Machine = PC, **settings: Any) -> dict[str, Finding]:
    """The first finding of each check."""
    return {name: all_[0] for name, all_ in found(House(tmp_path, machine).facts(**settings)).items()}


def test_another_program_at_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        threading.Thread(target=lambda: taken.accept()[0].close(), daemon=True).start()
        row = rows(tmp_path, port=taken.getsockname()[1])["port"]
    assert row.status == "bad" and "and it is not rkserve" in row.why
    assert "sudo ss -ltnp" in str(row.mend)


@pytest.mark.parametrize("body", [b"hello", b"[]", b'{"name": "ollama"}'])
def test_another_web_server_at_the_port(body: bytes, tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        row = rows(tmp_path, port=server.server_address[1])["port"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert row.status == "bad" and "and it is not rkserve" in row.why


def test_an_address_this_machine_has_not(tmp_path: Path) -> None:
    row = rows(tmp_path, host="192.0.2.7")["port"]
    assert row.status == "bad" and "assign" in row.why and "0.0.0.0" in str(row.mend)


@pytest.mark.parametrize(
    ("settings", "keys", "network", "key_row"),
    [
        ({}, None, ("ok", "only this machine can connect"), ("ok", "none is needed")),
        ({}, KEY, ("ok", "only this machine"), ("ok", "1 in ")),
        ({"host": "0.0.0.0"}, None, ("bad", "the server refuses to start"), ("bad", "holds none")),
        ({"host": "0.0.0.0"}, KEY, ("ok", "will be reached at"), ("ok", "1 in ")),
        ({"host": "0.0.0.0", "open_lan": True}, None, ("ok", ""), ("advice", "lets everybody in")),
        ({"host": "0.0.0.0"}, KEY + "nonsense\n", ("ok", "will be"), ("bad", "line 2 is not")),
    ],
)
def test_who_is_let_in(
    settings: dict[str, Any],
    keys: str | None,
    network: tuple[str, str],
    key_row: tuple[str, str],
    tmp_path: Path,
) -> None:
    named: dict[str, Any] = {}
    if settings or keys is not None:
        named = {"api_keys_file": tmp_path / "keys"}
    if keys is not None:
        (tmp_path / "keys").write_text(keys)
    said = rows(tmp_path, **settings, **named)
    assert said["network"].status == network[0] and network[1] in said["network"].why
    assert said["API keys"].status == key_row[0] and key_row[1] in said["API keys"].why


def test_a_board_that_only_it_can_reach_is_told_how_to_open(tmp_path: Path) -> None:
    row = rows(tmp_path, ROCK_5C)["network"]
    assert row.status == "advice"
    assert row.mend == "rkserve key add NAME, then RKSERVE_HOST=0.0.0.0 (or rkserve serve --host 0.0.0.0)"
