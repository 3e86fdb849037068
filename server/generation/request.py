"""What a client wants, whichever route it came by. Plain values: no schema of a route, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class SamplingChoice:
    """The sampling a client chose. None: not chosen, the entry's default counts."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


FormKind = Literal["json_schema", "json_object", "regex", "choice"]


@dataclass(frozen=True)
class Constraint:
    """Something that binds the answer. `param` names the field that asks for it, for the error.

    form: the kind of form it asks for, None for one that nothing here can check; value: what the field says.
    """

    param: str
    kind: Literal["form", "call"]
    form: FormKind | None = None
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One request for answers.

    model: the name asked for, None for the default. messages: normalised, as Templates.render takes them.
    client: whom the queue counts it for: a key's name or an address. user: who among those behind it, "" for
    nobody in particular. logprobs: None for none, else how many alternatives. thinking: None
    for the entry's default. continue_final: the answer goes on where the last message ends.
    tools: those the model may use but need not, in the API's form. task: what the client says it is for, ""
    for a chat's own answer.
    """

    model: str | None
    messages: Sequence[Mapping[str, Any]]
    client: str
    user: str = ""
    task: str = ""
    n: int = 1
    sampling: SamplingChoice = field(default_factory=SamplingChoice)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    logprobs: int | None = None
    thinking: bool | None = None
    continue_final: bool = False
    tools: Sequence[Mapping[str, Any]] = ()
    constraints: Sequence[Constraint] = ()

    @property
    def owner(self) -> str:
        """Whose KV caches may serve it. No client's name has a line break, so that two owners never meet."""
        return f"{self.client}\n{self.user}"
