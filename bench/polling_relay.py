"""A model of the design of the vendor's demo server, for perspective: threads, a shared list, polling.

The runtime's callback appends to a list in this very process; the request's handler empties the list, sleeps
up to 5 ms in a join of the runtime's thread, and stops once that has ended, without a last look. Written from
the description of the design, with the standard library. Run it as `python -m bench.polling_relay PORT`.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread

from backends.base import GenerateParams, Sampling, Span, TokenLogprob
from bench.replay import ReplayBackend

POLL_S = 0.005
_running = Lock()


class ListSink:
    """The callback: appends each token to a list that the handler reads."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def prefill(self, done: int, total: int) -> None:
        pass

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        self.texts.append(text)

    def warn(self, message: str) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    """Answers any POST with a streamed chat completion, any GET with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        params = GenerateParams(
            prompt=[Span(request["messages"][-1]["content"], False)],
            sampling=Sampling(),
            max_tokens=request["max_tokens"],
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with _running:
            sink = ListSink()
            runtime = Thread(target=ReplayBackend().generate, args=(params, sink, Event()))
            runtime.start()
            ended = False
            while not ended:
                while sink.texts:
                    self.send_text(sink.texts.pop(0))
                runtime.join(POLL_S)
                ended = not runtime.is_alive()
        self.wfile.write(b"data: [DONE]\n\n")

    def send_text(self, text: str) -> None:
        """Write a token as an event."""
        chunk = {
            "id": "chatcmpl-0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1760000000,
            "model": "replay",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        }
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
