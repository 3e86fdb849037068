"""A small random Llama-like model as a hybrid folder, for tests of everything that runs one. No downloads.

The vocabulary holds all bytes, so any text can be encoded; ChatML's control tokens; and added tokens that are
not special (`<think>` and the like), which text from users must never become.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from backends.hybrid.meta import License
from convert.graphs import Array
from tests.llama import LlamaConfig, write_llama

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
EOS_TOKEN_ID = 2  # <|im_end|>
WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by "
    "word but not what all were we when your can said there use an each which she do how their if will up "
    "system user assistant hello world helpful capital question answer sentence number model server board"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_tokenizer() -> str:
    """Return the text of a tokenizer.json: byte-level BPE whose merges spell WORDS from left to right."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*CONTROL_TOKENS, *alphabet]
    merges: list[tuple[str, str]] = []
    known = set(tokens)
    for word in WORDS.split():
        spelled = "Ġ" + word
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in known:
                known.add(spelled[:end])
                tokens.append(spelled[:end])
                merges.append((spelled[: end - 1], spelled[end - 1]))
    tokens += ADDED_TOKENS
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in ADDED_TOKENS])
    return tokenizer.to_str()


def tiny_config(**changes: object) -> LlamaConfig:
    """Return small dimensions, some of them odd; `changes` replaces fields by name."""
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=80,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=Tokenizer.from_str(tiny_tokenizer()).get_vocab_size(),
        context_length=512,
        norm_eps=1e-5,
        rope_theta=10_000.0,
        rotary_dim=8,
        tied_lm_head=True,
    )
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]  # checked when it is made


def tiny_llama_weights(config: LlamaConfig, seed: int = 0) -> dict[str, Array]:
    """Return random float32 weights by Hugging Face name, scaled so that activations stay near 1."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name in config.names:
        shape = config.shape(name)
        values = rng.standard_normal(shape)
        if len(shape) == 1:
            values = 1 + 0.1 * values
        elif name != "model.embed_tokens.weight":
            values = values / np.sqrt(shape[1])
        weights[name] = values.astype(np.float32)
    return weights


def tiny_folder(
    directory: Path,
    *,
    seed: int = 0,
    layers: int = 3,
    lengths: Sequence[int] = (1, 8, 32),
    **changes: object,
) -> Path:
    """Write a hybrid folder into `directory` (made if missing) and return it.

    The weights are tiny_llama_weights(tiny_config(num_layers=layers, **changes), seed).
    """
    config = tiny_config(num_layers=layers, **changes)
    directory.mkdir(parents=True, exist_ok=True)
    write_llama(
        directory,
        config,
        tiny_llama_weights(config, seed).__getitem__,
        name="Tiny",
        tokenizer=tiny_tokenizer(),
        chat_template=CHAT_TEMPLATE,
        eos_token_ids=[EOS_TOKEN_ID],
        license=License(id="Apache-2.0", notice="random weights"),
        source={"seed": str(seed)},
        lengths=lengths,
    )
    return directory
