"""The design of the vendor's demo server on the library itself: globals, a thread, a look every 5 ms.

The callback appends text to a global list; the request's handler empties it, joins the thread for 5 ms, and
stops once that has ended, without a last look. Written from the description of the design.
Run it as `python -m bench.runtime_polling PORT LIBRARY MODEL`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from backends.rkllm.enums import LLMCallState, RKLLMInferMode, RKLLMInputType
from backends.rkllm.library import open_library
from backends.rkllm.structs import LLMHandle, LLMResultCallback, RKLLMCallback, RKLLMInferParam, RKLLMInput
from bench.polling_relay import POLL_S, Handler
from bench.runtime_files import CONTEXT_LENGTH

texts: list[str] = []
running = Lock()


def on_result(result: Any, userdata: int | None, state: int) -> int:
    """Append a token's text to the global list."""
    if state == LLMCallState.NORMAL and result and result.contents.text:
        texts.append(result.contents.text.decode())
    return 0


class Runtime:
    """The loaded model."""

    def __init__(self, library: Path, model: Path) -> None:
        opened = open_library(library)
        self._functions = opened.functions
        self._handle = LLMHandle()
        param = opened.default_param()
        param.model_path = str(model).encode()
        param.max_context_len = CONTEXT_LENGTH
        self._callback = LLMResultCallback(on_result)
        callbacks = RKLLMCallback(result_callback=self._callback)
        status = self._functions.rkllm_init(
            ctypes.byref(self._handle), ctypes.byref(param), ctypes.byref(callbacks)
        )
        assert status == 0
        self._functions.rkllm_set_chat_template(self._handle, b"", b"", b"")

    def run(self, prompt: str, tokens: int) -> None:
        """Run a prompt to its end."""
        given = RKLLMInput(role=b"user", input_type=RKLLMInputType.PROMPT, prompt_input=prompt.encode())
        infer = RKLLMInferParam(mode=RKLLMInferMode.GENERATE, keep_history=0, max_new_tokens=tokens)
        self._functions.rkllm_run(self._handle, ctypes.byref(given), ctypes.byref(infer), None)


class RuntimeHandler(Handler):
    """Answers from the library."""

    runtime: Runtime

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with running:
            texts.clear()
            prompt, tokens = request["messages"][-1]["content"], request["max_tokens"]
            thread = Thread(target=self.runtime.run, args=(prompt, tokens))
            thread.start()
            ended = False
            while not ended:
                while texts:
                    self.send_text(texts.pop(0))
                thread.join(POLL_S)
                ended = not thread.is_alive()
        self.wfile.write(b"data: [DONE]\n\n")


def main(port: int, library: Path, model: Path) -> None:
    """Serve for ever."""
    RuntimeHandler.runtime = Runtime(library, model)
    ThreadingHTTPServer(("127.0.0.1", port), RuntimeHandler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
