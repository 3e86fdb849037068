"""Builds a tokenizer.json from the vocabulary a GGUF file carries, to give the tokens llama.cpp gives.

Two kinds: byte-level BPE ("gpt2") here, SentencePiece's BPE ("llama") in gguf_sentence_piece. How text is cut
before byte-level merges is not in the file, only its name (tokenizer.ggml.pre), so the table below says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from convert.errors import ConvertError
from convert.gguf_metadata import INSTEAD, Metadata
from convert.gguf_sentence_piece import BLANK, sentence_piece
from convert.gguf_vocabulary import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    mark_added,
    read_vocabulary,
)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Cut by each pattern in turn, what matches and what does not."""
    return pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _words(digits: str) -> str:
    return "|".join((_CONTRACTIONS, _WORDS, digits, _REST))


@dataclass(frozen=True)
class _Pre:
    """A way to cut text. whole_words: a piece that is a token is taken before any merge.

    bos: whether the token that begins a text is put in front where the file does not say.
    """

    make: Callable[[], pre_tokenizers.PreTokenizer]
    whole_words: bool = False
    bos: bool = False


_GPT2 = _Pre(_byte_level)
_DIGITS_APART = _Pre(_digits_apart)
_QWEN2 = _Pre(lambda: _split(_words(r"\p{N}")))
_LLAMA3 = _Pre(lambda: _split(_words(r"\p{N}{1,3}")), whole_words=True, bos=True)
_CL100K = _Pre(lambda: _split(_words(r"\p{N}{1,3}")))
_MINICPM5 = _Pre(lambda: _split(r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True)

# The names that share a rule in llama.cpp (llama_vocab::impl::load and llm_tokenizer_bpe in
# src/llama-vocab.cpp), as far as models of the architectures here have them. Left out are those whose
# expressions llama.cpp gives only roughly (gpt-4o, tekken) or in code of its own.
PRE_TOKENIZERS: Mapping[str, _Pre] = {
    "gpt-2": _GPT2,
    "granite-docling": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "codeshell": _DIGITS_APART,
    "refact": _DIGITS_APART,  # Granite 3
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "qwen2": _QWEN2,  # Qwen3 too
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "dbrx": _CL100K,  # Granite 4
    "smaug-bpe": _CL100K,
    "minicpm5": _MINICPM5,
}


def build_tokenizer(metadata: Metadata) -> str:
    """Return the text of a tokenizer.json. Raises ConvertError for a kind not supported or not whole."""
    model, pre = metadata.get("tokenizer.ggml.model", str), metadata.find("tokenizer.ggml.pre", str)
    if model == "llama":
        vocabulary = read_vocabulary(metadata)
        tokenizer = sentence_piece(metadata, vocabulary)
        _add_bos(tokenizer, metadata, vocabulary, default=True)
    elif model == "gpt2" and pre is not None and pre in PRE_TOKENIZERS:
        vocabulary = read_vocabulary(metadata)
        tokenizer = _byte_level_bpe(metadata, vocabulary, PRE_TOKENIZERS[pre])
        _add_bos(tokenizer, metadata, vocabulary, default=PRE_TOKENIZERS[pre].bos)
    else:
        raise ConvertError(
            f"The tokenizer is of the kind {model!r} with the pre-tokenizer {pre!r}; supported are 'llama', "
            f"and 'gpt2' with {', '.join(sorted(PRE_TOKENIZERS))}. {INSTEAD}"
        )
    return tokenizer.to_str()


def check_tokenizer(text: str, metadata: Metadata, path: Path) -> None:
    """Refuse a tokenizer.json that does not have each token of the file under the file's id.

    path: how messages name it. Raises ConvertError.
    """
    try:
        spelled = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises nothing more exact
        raise ConvertError(f"{path} is no tokenizer ({error}). Fetch it again from the publisher.") from error
    tokens = {token_id: token for token, token_id in spelled.items()}
    vocabulary = read_vocabulary(metadata)
    for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        found = tokens.get(token_id)
        if kind != UNUSED and found not in (token, token.replace(" ", BLANK)):
            raise ConvertError(
                f"Token {token_id} is {found!r} in {path} and {token!r} in the GGUF file: they are not of "
                "the same model. Fetch the tokenizer.json of the model that the file was made from."
            )


def _byte_level_bpe(metadata: Metadata, vocabulary: Vocabulary, pre: _Pre) -> Tokenizer:
    metadata.only("tokenizer.ggml.add_space_prefix", False)
    bpe = models.BPE(
        {token: index for index, token in enumerate(vocabulary.tokens)},
        _merges(metadata, set(vocabulary.tokens)),
        ignore_merges=pre.whole_words,
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre.make()
    tokenizer.decoder = decoders.ByteLevel()
    mark_added(tokenizer, vocabulary.of_type(UNKNOWN, CONTROL), vocabulary.of_type(USER_DEFINED))
    return tokenizer


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


def _add_bos(tokenizer: Tokenizer, metadata: Metadata, vocabulary: Vocabulary, *, default: bool) -> None:
    """Let encoding with special tokens put the begin-of-sequence token in front, if the file asks for it."""
    wanted = metadata.find("tokenizer.ggml.add_bos_token", bool)
    if not (default if wanted is None else wanted):
        return
    token_id = metadata.get("tokenizer.ggml.bos_token_id", int)
    if token_id >= len(vocabulary.tokens):
        raise ConvertError(
            f"tokenizer.ggml.bos_token_id is {token_id} in a vocabulary of {len(vocabulary.tokens)}: the "
            "file is damaged. Fetch it again."
        )
    bos = vocabulary.tokens[token_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, token_id)]
    )
