"""llama.cpp doing what the engine does: read a prompt of so many tokens, then decode greedily.

Run by the interpreter of an environment that has llama-cpp-python, so it imports nothing of this project.
Speaks JSON lines: one about itself once the model is loaded, then one answer for each
{"prompt": tokens, "decode": tokens} on standard input. Usage: llama_peer.py GGUF THREADS CONTEXT
"""

from __future__ import annotations

import json
import sys
import time

import llama_cpp
import numpy as np

_BATCH = 512


def main(gguf: str, threads: int, context: int) -> None:
    model = llama_cpp.Llama(
        gguf, n_ctx=context, n_batch=_BATCH, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    _say({"version": llama_cpp.__version__})
    words = model.tokenize(
        (" one two three four five six seven eight nine ten" * 400).encode(), add_bos=False
    )

    def best() -> int:
        """Return the likeliest next token, straight from the logits: cheaper than any sampler."""
        logits = llama_cpp.llama_get_logits(model.ctx)
        return int(np.ctypeslib.as_array(logits, shape=(model.n_vocab(),)).argmax())

    for line in sys.stdin:
        asked = json.loads(line)
        model.reset()
        started = time.perf_counter()
        model.eval(words[: asked["prompt"]])
        token = best()
        first = time.perf_counter()
        for _ in range(asked["decode"]):
            model.eval([token])
            token = best()
        _say({"first_token_s": first - started, "decode_s": time.perf_counter() - first})


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
