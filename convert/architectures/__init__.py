"""The architectures that a Hugging Face checkpoint may have: what each makes of its config.json.

To add one: a function that asks a Config for every key it has and returns a Model, and its name here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convert.architectures.gemma3 import gemma3
from convert.architectures.lfm import lfm2, lfm3
from convert.architectures.llama import granite, llama
from convert.architectures.qwen3 import kanana2, qwen3
from convert.hf_config import Config
from convert.model import Model

ARCHITECTURES: Mapping[str, Callable[[Config], Model]] = {
    "gemma3_text": gemma3,
    "granite": granite,
    "kanana2": kanana2,
    "lfm2": lfm2,
    "lfm3": lfm3,
    "llama": llama,
    "qwen3": qwen3,
}
