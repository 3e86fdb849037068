"""A hub of our own that answers huggingface_hub as the real one does, and a storage that can misbehave.

Large files lie on the storage, under another host name, to which the hub redirects with the headers that
huggingface_hub reads (X-Repo-Commit, X-Linked-Etag, X-Linked-Size); small ones are answered by the hub
itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE_BYTES = 2000  # from here on a file is kept by LFS


@dataclass
class Fault:
    """What the storage does wrong with one download.

    cut: bytes after which the connection ends. stall: sends nothing more after them instead, until the client
    leaves. flip: a byte of the file that is sent changed. status: the answer in place of the file. no_ranges:
    a range is ignored. then: repository, file and the content it has from then on.
    """

    cut: int | None = None
    stall: bool = False
    flip: int | None = None
    status: int | None = None
    no_ranges: bool = False
    then: tuple[str, str, bytes] | None = None


@dataclass
class Hub:
    """The hub: repos are {name: {file: content}}. ranges: of the storage's requests, in turn. any_path: what
    is at every path where nothing is.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    gated: set[str] = field(default_factory=set)
    listed_sha256: dict[str, str] = field(default_factory=dict)
    listed_sizes: dict[str, int] = field(default_factory=dict)
    any_path: bytes | None = None
    ranges: list[str | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    tokens_seen: dict[str, set[str | None]] = field(default_factory=lambda: {"hub": set(), "storage": set()})
    sent_bytes: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    storage_url: str = ""

    def commit(self, repo: str) -> str:
        """Return the commit a repository is at: it goes with its content."""
        told = repr(sorted((name, _sha256(content)) for name, content in self.repos[repo].items()))
        return hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()

    def environment(self) -> dict[str, str]:
        """Return the variables by which a command finds this hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "2",
            "HF_TOKEN": "hf_secret",
        }


@lru_cache(maxsize=256)
def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # whoever asked was killed, or does not wait any longer
                self.wfile.write(body)

    def _answer(self) -> None:
        raise NotImplementedError


class _HubHandler(_Handler):
    def _answer(self) -> None:
        hub = self.hub
        hub.tokens_seen["hub"].add(self.headers.get("authorization"))
        path = unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._api(api[1], api[2])
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(file[1], file[2], file[3])
        elif hub.any_path is not None:
            self._send(200, hub.any_path, ETag='"any"', X_Repo_Commit="0" * 40)
        else:
            self._send(404)

    def _known(self, repo: str, revision: str) -> bool:
        hub = self.hub
        if repo not in hub.repos:
            self._send(404, X_Error_Code="RepoNotFound")
        elif repo in hub.gated:
            self._send(403, X_Error_Code="GatedRepo", X_Error_Message="ask first")
        elif revision not in ("main", hub.commit(repo)):
            self._send(404, X_Error_Code="RevisionNotFound")
        else:
            return True
        return False

    def _api(self, repo: str, revision: str) -> None:
        if not self._known(repo, revision):
            return
        siblings = []
        for name, content in self.hub.repos[repo].items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
            size = self.hub.listed_sizes.get(name, len(content))
            one: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git}
            if len(content) >= LARGE_BYTES:
                one["lfs"] = {"sha256": self._sha256(content, name), "size": size, "pointerSize": 134}
            siblings.append(one)
        found: dict[str, Any] = {"id": repo, "sha": self.hub.commit(repo), "siblings": siblings}
        if repo in self.hub.cards:
            found["cardData"] = self.hub.cards[repo]
        self._send(200, json.dumps(found).encode(), content_type="application/json")

    def _sha256(self, content: bytes, name: str) -> str:
        return self.hub.listed_sha256.get(name) or _sha256(content)

    def _file(self, repo: str, revision: str, name: str) -> None:
        if not self._known(repo, revision):
            return
        content = self.hub.repos[repo].get(name)
        commit = self.hub.commit(repo)
        if content is None:
            self._send(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        elif len(content) >= LARGE_BYTES:
            # Relative first, as for a repository that was renamed, then to the storage.
            if not self.path.endswith("?moved"):
                self._send(307, Location=f"{self.path}?moved", X_Repo_Commit=commit)
                return
            self._send(
                302,
                Location=f"{self.hub.storage_url}/{repo}/{name}?signature=abc",
                X_Repo_Commit=commit,
                X_Linked_Etag=f'"{self._sha256(content, name)}"',
                X_Linked_Size=str(len(content)),
                ETag='"of the pointer"',
            )
        else:
            etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
            self._send(200, content, ETag=f'"{etag}"', X_Repo_Commit=commit)


class _StorageHandler(_Handler):
    def _answer(self) -> None:
        hub = self.hub
        hub.tokens_seen["storage"].add(self.headers.get("authorization"))
        _, owner, name, file = unquote(urlsplit(self.path).path).split("/", 3)
        content = hub.repos[f"{owner}/{name}"][file]
        wanted = self.headers.get("range")
        hub.ranges.append(wanted)
        fault = hub.faults.pop(0) if hub.faults else Fault()
        if fault.status is not None:
            self._send(fault.status)
            return
        start = 0
        condition = self.headers.get("if-range", "").strip('"')
        if wanted and not fault.no_ranges and condition in ("", _sha256(content)):
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        if fault.flip is not None:
            changed = bytearray(content)
            changed[fault.flip] ^= 1
            content = bytes(changed)
        total = len(content)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("content-range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("content-length", str(total - start))
        self.send_header("etag", f'"{_sha256(content)}"')
        self.end_headers()
        if self.command == "HEAD":
            return
        body = content[start:] if fault.cut is None else content[start : start + fault.cut]
        with suppress(ConnectionError):
            self.wfile.write(body)
        hub.sent_bytes += len(body)
        if fault.then is not None:
            hub.repos[fault.then[0]][fault.then[1]] = fault.then[2]
        if fault.stall:
            hub.stalled.set()
            hub.end.wait(60)
        if fault.cut is not None:
            self.close_connection = True


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub and its storage until the block ends."""
    hub = Hub()
    servers = []
    for handler in (_HubHandler, _StorageHandler):
        bound = type(handler.__name__, (handler,), {"hub": hub})
        server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        server.daemon_threads = True
        server.block_on_close = False
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    hub.url = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.storage_url = f"http://localhost:{servers[1].server_address[1]}"
    try:
        yield hub
    finally:
        hub.end.set()
        for server in servers:
            server.shutdown()
            server.server_close()
