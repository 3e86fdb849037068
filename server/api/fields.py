"""Field types that the schemas of all routes are made of.

Types are strict (a quoted number is no number, as in the OpenAI API), except that 256.0 is a whole number.
Null in an optional field means the same as leaving it out; unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

# Tags of unions. The angle brackets keep them out of the paths in errors (server.http.validation).
TEXT, LIST, OBJECT = "<text>", "<list>", "<object>"

MOST_STOPS = 16
MOST_BIASES = 10_000
LONGEST_STOP = 1024


class RequestSchema(BaseModel):
    """Base of every schema of a request."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _kind(value: Any) -> str | None:
    for kind, tag in ((str, TEXT), (list, LIST), (dict, OBJECT)):
        if isinstance(value, kind):
            return tag
    return None


def one_of_kinds(words: str) -> Discriminator:
    """Return a discriminator of a union whose members are tagged TEXT, LIST or OBJECT."""
    return Discriminator(_kind, custom_error_type="kind", custom_error_message=f"must be {words}")


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
PositiveWhole = Annotated[int, Field(ge=1), BeforeValidator(_whole, json_schema_input_type=int)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), BeforeValidator(_whole, json_schema_input_type=int)]


Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
RepeatPenalty = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


def _few_biases(value: Any) -> Any:
    # Before the biases are looked at: each bad one would become a problem to report.
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"must have at most {MOST_BIASES} entries, and has {len(value)}")
    return value


Biases = Annotated[dict[str, Bias], BeforeValidator(_few_biases, json_schema_input_type=dict[str, Bias])]

StopText = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Stop = Annotated[
    Annotated[StopText, Tag(TEXT)] | Annotated[list[StopText], Field(max_length=MOST_STOPS), Tag(LIST)],
    one_of_kinds("a string or a list of strings"),
]
