"""Shows that llama.cpp reads the small GGUF files as what they are: `python -m tests.oracle.check_gguf`.

In the oracle's environment. Every model's logits are compared with the committed ones, which transformers
made of the checkpoint, before each token that was kept of each conversation. So a file that the quick tests
convert means to llama.cpp what it is to mean to them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

from tests.oracle import gguf_files
from tests.oracle.architectures import ANSWER_TOKENS, STEPS, Conversation, models

TOLERANCE = 1e-2  # llama.cpp takes Gemma's GELU from a table in float16: 0.004; all others 0.0002
F32 = 0  # GGML_TYPE_F32


def main() -> None:
    """Print the largest difference of each model's logits; end with an error where one is too large."""
    with tempfile.TemporaryDirectory() as directory:
        for name in gguf_files.NAMES:
            path = Path(directory) / f"{name}.gguf"
            gguf_files.write_gguf(path, models()[name])
            difference = max(
                _difference(path, conversation) for conversation in models()[name].conversations.values()
            )
            print(f"{name:16} {difference:.6f}", flush=True)
            if not difference < TOLERANCE:
                raise SystemExit(f"llama.cpp reads {name} as another model than transformers")


def _difference(path: Path, conversation: Conversation) -> float:
    """Return how far the logits are apart before the answer's tokens that are kept."""
    model = llama_cpp.Llama(
        str(path),
        n_ctx=512,
        n_batch=512,
        n_threads=1,
        type_k=F32,
        type_v=F32,
        logits_all=True,
        verbose=False,
    )
    whole = conversation.prompt + conversation.answer[: ANSWER_TOKENS - 1]
    model.eval(whole)
    rows = [len(conversation.prompt) - 1 + step for step in STEPS]
    found = np.array(model.scores[rows])
    model.close()
    return float(np.abs(found - np.array(conversation.logits)).max())


if __name__ == "__main__":
    main()
