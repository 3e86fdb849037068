"""A small real HTTP server that answers chats with a script, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "rk-the-key"


@dataclass
class Script:
    """What to answer: models, lines of the stream, or a status and a body. `hang`: never end a stream."""

    models: Sequence[str] = ("only",)
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    default: str | None = None
    lines: Sequence[str] = ()
    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)
    asks_for_key: bool = False
    hang: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    streaming: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)
    url: str = ""


def _model(script: Script, name: str) -> dict[str, Any]:
    aliases = {"aliases": script.aliases[name]} if name in script.aliases else {}
    return {"id": name} | aliases | ({} if script.default is None else {"default": name == script.default})


def delta(**fields: str) -> str:
    """Return a line of a stream that carries a piece of an answer."""
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def end(reason: str = "stop", prompt: int = 9, cached: int = 4, completion: int = 3) -> list[str]:
    """Return the lines that end a stream."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return [
        "data: " + json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}),
        "data: " + json.dumps({"choices": [], "usage": usage}),
        "data: [DONE]",
    ]


@contextmanager
def openai_server(script: Script) -> Iterator[Script]:
    """Serve the script until the block ends; yields it with its url."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def _json(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            if script.asks_for_key and self.headers.get("authorization") != f"Bearer {KEY}":
                self._json(401, {"error": {"message": "no such key"}})
            else:
                self._json(200, {"object": "list", "data": [_model(script, name) for name in script.models]})

        def do_POST(self) -> None:
            script.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            if script.status != 200:
                self._json(script.status, script.body)
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for line in script.lines:
                self.wfile.write(f"{line}\n\n".encode())
                self.wfile.flush()
            script.streaming.set()
            if script.hang:
                script.stopped.wait()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield script
    finally:
        script.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
