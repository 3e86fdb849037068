"""Builds a tokenizer.json from the vocabulary a GGUF file carries, to give the tokens llama.cpp gives.

Byte-level BPE only (tokenizer.ggml.model "gpt2"). How text is cut before the merges is not in the file, only
its name (tokenizer.ggml.pre), so the table below says it, as llama.cpp's table of regular expressions does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from convert.errors import ConvertError
from convert.gguf_metadata import Metadata

# Of tokenizer.ggml.token_type: what is no piece of text, and what is text but never cut.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    pattern = Regex("|".join((_CONTRACTIONS, _WORDS, digits, _REST)))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _byte_level,
    "llama-bpe": lambda: _split(r"\p{N}{1,3}"),
    "qwen2": lambda: _split(r"\p{N}"),
    "smollm": _digits_apart,
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe"})  # a piece that is a token is taken before any merge


def build_tokenizer(metadata: Metadata) -> str:
    """Return the text of a tokenizer.json. Raises ConvertError for a kind not supported or not whole."""
    model, pre = metadata.get("tokenizer.ggml.model", str), metadata.find("tokenizer.ggml.pre", str)
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise ConvertError(
            f"The tokenizer is of the kind {model!r} with the pre-tokenizer {pre!r}; supported is 'gpt2' "
            f"with {', '.join(sorted(_PRE_TOKENIZERS))}. Use another file of the model, or another model."
        )
    tokens = metadata.array("tokenizer.ggml.tokens", str)
    types = metadata.array("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise ConvertError(
            f"tokenizer.ggml.token_type has {len(types)} items for {len(tokens)} tokens: the file is "
            "damaged. Fetch it again."
        )
    repeated = [token for token, count in Counter(tokens).items() if count > 1]
    if repeated:
        raise ConvertError(
            f"The vocabulary holds {repeated[0]!r} more than once: the file is damaged. Fetch it again."
        )
    bpe = models.BPE(
        {token: index for index, token in enumerate(tokens)},
        _merges(metadata, set(tokens)),
        ignore_merges=pre in _WHOLE_WORDS_FIRST,
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_UNKNOWN, _CONTROL):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    _add_bos(tokenizer, metadata, tokens, default=pre in _WHOLE_WORDS_FIRST)
    return tokenizer.to_str()


def _merges(metadata: Metadata, vocabulary: set[str]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for text in metadata.array("tokenizer.ggml.merges", str):
        left, _, right = text.partition(" ")
        if not {left, right, left + right} <= vocabulary:
            raise ConvertError(
                f"The merge {text!r} of the tokenizer names tokens the vocabulary does not hold: the file is "
                "damaged. Fetch it again."
            )
        merges.append((left, right))
    return merges


def _add_bos(tokenizer: Tokenizer, metadata: Metadata, tokens: list[str], *, default: bool) -> None:
    """Let encoding with special tokens put the begin-of-sequence token in front, if the file asks for it."""
    wanted = metadata.find("tokenizer.ggml.add_bos_token", bool)
    if not (default if wanted is None else wanted):
        return
    token_id = metadata.get("tokenizer.ggml.bos_token_id", int)
    if token_id >= len(tokens):
        raise ConvertError(
            f"tokenizer.ggml.bos_token_id is {token_id} in a vocabulary of {len(tokens)}: the file is "
            "damaged. Fetch it again."
        )
    bos = tokens[token_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, token_id)]
    )
