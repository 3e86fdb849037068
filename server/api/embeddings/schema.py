"""What an embeddings request looks like: types and ranges. What a model can do is checked elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from server.api.fields import LIST, TEXT, PositiveWhole, RequestSchema, Whole, one_of_kinds

MOST_INPUTS = 2048
# Token ids of one input: more than any context has. Without bounds a body takes long to parse.
MOST_IDS = 131_072
LONGEST_NAME = 256
MOST_DIMENSIONS = 65_536  # more than any model has
NUMBER = "<number>"

TokenId = Annotated[Whole, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MOST_IDS, fail_fast=True)]
InputText = Annotated[str, Field(min_length=1)]


def _kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    for kind, tag in ((str, TEXT), (list, LIST), (int, NUMBER), (float, NUMBER)):
        if isinstance(value, kind):
            return tag
    return None


_Element = Annotated[
    Annotated[InputText, Tag(TEXT)] | Annotated[TokenIds, Tag(LIST)] | Annotated[TokenId, Tag(NUMBER)],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message="must be a string, a list of token ids, or a token id",
    ),
]
Input = Annotated[
    Annotated[InputText, Tag(TEXT)]
    | Annotated[list[_Element], Field(min_length=1, max_length=MOST_IDS, fail_fast=True), Tag(LIST)],
    one_of_kinds("a string, a list of strings, a list of token ids, or a list of such lists"),
]


class EmbeddingsRequest(RequestSchema):
    """The body of POST /v1/embeddings.

    input_type, as other servers have it: whether the inputs are questions or what is searched through.
    """

    input: Input
    model: Annotated[str, Field(max_length=LONGEST_NAME)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[PositiveWhole, Field(le=MOST_DIMENSIONS)] | None = None
    user: Annotated[str, Field(max_length=LONGEST_NAME)] | None = None
    input_type: Literal["query", "search_query", "document", "search_document", "passage"] | None = None
