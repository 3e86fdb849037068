"""SentencePiece's BPE, as Gemma 3 and Llama 2 have it, from a vocabulary with scores.

A file has no merges: any two neighbours that spell a token may merge, the token with the highest score first.
Written as ranked merges, that is what the tokenizer.json of these models holds; of Gemma 3 it is the
publisher's own list.
"""

from __future__ import annotations

from collections import Counter

from tokenizers import Tokenizer, decoders, models, normalizers

from convert.errors import ConvertError
from convert.gguf_metadata import INSTEAD, Metadata
from convert.gguf_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    mark_added,
)

BLANK = "\u2581"  # stands for a blank in tokens
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def sentence_piece(metadata: Metadata, vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer of a file whose kind is "llama". Raises ConvertError for what is not exact.

    Unlike in llama.cpp, no two neighbours merge to a control token: text must not become one.
    """
    if set(vocabulary.of_type(BYTE)) != _BYTES:
        raise ConvertError(
            "The vocabulary lacks tokens for single bytes (<0x00> to <0xFF>): there is text it cannot "
            f"express. {INSTEAD}"
        )
    # The converter writes blanks in user-defined tokens as such (TextModel in conversion/base.py), since
    # llama.cpp looks for these before it replaces blanks; merges see them afterwards.
    spelled = {token.replace(" ", BLANK): index for index, token in enumerate(vocabulary.tokens)}
    if len(spelled) != len(vocabulary.tokens):
        raise ConvertError(f"The vocabulary has tokens that differ in how they write blanks only. {INSTEAD}")
    merges = _merges(metadata, vocabulary, spelled)
    prefixed = metadata.find("tokenizer.ggml.add_space_prefix", bool) is not False  # llama.cpp's default
    _check_characters(vocabulary, spelled)
    _check_whole(vocabulary, {"".join(merge) for merge in merges}, prefixed=prefixed)
    unknown = vocabulary.of_type(UNKNOWN)
    tokenizer = Tokenizer(
        models.BPE(
            spelled, merges, unk_token=unknown[0] if unknown else None, fuse_unk=True, byte_fallback=True
        )
    )
    replaced = normalizers.Replace(" ", BLANK)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(BLANK), replaced]) if prefixed else replaced
    )
    parts = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefixed else parts)
    plain = [token for token in vocabulary.of_type(USER_DEFINED) if " " not in token]
    mark_added(tokenizer, vocabulary.of_type(UNKNOWN, CONTROL), plain)
    return tokenizer


def _merges(metadata: Metadata, vocabulary: Vocabulary, spelled: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that spell a third, in the order in which they merge.

    By falling score; what the user defined first of all, since it is taken before anything merges. Pairs of
    equal rank with the longer left part first, so that a run of blanks or line ends grows from its start to
    the longest token, as if it had been looked up.
    """
    scores = metadata.array("tokenizer.ggml.scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise ConvertError(
            f"tokenizer.ggml.scores has {len(scores)} items for {len(vocabulary.tokens)} tokens: the file is "
            "damaged. Fetch it again."
        )
    pairs: list[tuple[bool, float, int, int, str, str]] = []
    ranked: list[float] = []
    for token, index in spelled.items():
        kind = vocabulary.types[index]
        cuts = [at for at in range(1, len(token)) if token[:at] in spelled and token[at:] in spelled]
        if not cuts or kind not in (NORMAL, USER_DEFINED, UNUSED):
            continue
        if kind == UNUSED:
            raise ConvertError(
                f"The tokenizer has {token!r} and does not use it, but merges spell it: programs differ in "
                f"what they make of that. {INSTEAD}"
            )
        if kind == NORMAL:
            ranked.append(scores[index])
        user_defined = kind == USER_DEFINED
        score = 0.0 if user_defined else scores[index]
        pairs += [(user_defined, score, at, len(token) - at, token[:at], token[at:]) for at in cuts]
    repeated = [score for score, count in Counter(ranked).items() if count > 1]
    if repeated:
        raise ConvertError(
            f"Several tokens have the score {repeated[0]}: the order of their merges is not known. {INSTEAD}"
        )
    pairs.sort(key=lambda pair: pair[:4], reverse=True)
    return [(left, right) for *_, left, right in pairs]


def _check_whole(vocabulary: Vocabulary, mergeable: set[str], *, prefixed: bool) -> None:
    """Refuse what the user defined where merges do not make of it what looking it up first makes."""
    for token in vocabulary.of_type(USER_DEFINED):
        spelled = token.replace(" ", BLANK)
        merged = spelled in mergeable or len(token) == 1
        # With a blank in front of each part of a text, one belongs after such a token too.
        if merged if prefixed else " " in token and not merged:
            raise ConvertError(
                f"The tokenizer takes {token!r} whole before it merges, which is not supported. {INSTEAD}"
            )


def _check_characters(vocabulary: Vocabulary, spelled: dict[str, int]) -> None:
    """Refuse a token with a character that is none: SentencePiece merges such, ranked merges do not."""
    for token in vocabulary.of_type(NORMAL):
        if any(character not in spelled for character in token):
            raise ConvertError(
                f"The token {token!r} holds a character that the vocabulary has not. {INSTEAD}"
            )
