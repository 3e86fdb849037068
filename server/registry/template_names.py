"""What an entry's `template` key can name besides a file."""

from __future__ import annotations

MODEL_TEMPLATE = "model"  # the one that came with the model

BUILTIN_TEMPLATES: frozenset[str] = frozenset(
    {
        "chatml",
        "gemma4",
        "granite4",
        "granite4.2",
        "kanana2",
        "lfm2",
        "lfm3",
        "llama3",
        "minicpm5",
        "nanbeige",
        "qwen3",
        "qwen3-vl",
        "rwkv",
        "smollm2",
    }
)
