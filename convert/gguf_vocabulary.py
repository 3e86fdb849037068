"""The tokens a GGUF file lists, with their types; both kinds of tokenizer begin with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from convert.errors import ConvertError
from convert.gguf_metadata import Metadata

# Of tokenizer.ggml.token_type (TokenType in the gguf package).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class Vocabulary:
    """tokens and their types, by id."""

    tokens: Sequence[str]
    types: Sequence[int]

    def of_type(self, *types: int) -> list[str]:
        """Return the tokens of some types, by rising id."""
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Return the tokens of a file. Raises ConvertError for a list that is not whole."""
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
    return Vocabulary(tokens, types)


def mark_added(tokenizer: Tokenizer, special: Sequence[str], plain: Sequence[str]) -> None:
    """Let a tokenizer take tokens whole. special: control tokens. plain: text that is never cut."""
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
