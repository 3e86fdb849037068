"""Which inputs and outputs a segment must have for its place in the model, and how a description departs.

Pure: looks at the description only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from backends.hybrid.meta import Meta, Role, Tensor

KNOWN_ROLES: frozenset[Role] = frozenset(
    {"hidden", "attn", "q", "k", "v", "gate", "conv_state", "bx", "logits"}
)
_OF_CONV: tuple[Role, ...] = ("conv_state", "bx")  # a segment has one of these for each of its conv layers
_LONGEST_STATE = 4096


@dataclass(frozen=True)
class Needed:
    """A tensor a segment must have. rows: "T", a number, or None for any number that is the model's."""

    role: Role
    layer: int | None
    rows: Literal["T"] | int | None
    size: int

    @property
    def place(self) -> tuple[Role, int | None]:
        """What it is: role and layer."""
        return self.role, self.layer

    def fits(self, shape: Sequence[int | str]) -> bool:
        """Return whether a tensor of this shape can be it."""
        if len(shape) != 2 or shape[1] != self.size:
            return False
        if self.rows is None:
            return isinstance(shape[0], int) and 0 < shape[0] <= _LONGEST_STATE
        return shape[0] == self.rows

    def __str__(self) -> str:
        return (
            f"['{self.rows}', {self.size}]" if self.rows == "T" else f"[{self.rows or 'rows'}, {self.size}]"
        )


def needed_tensors(
    meta: Meta, ends: int | None, convs: Sequence[int], begins: int | None
) -> tuple[list[Needed], list[Needed]]:
    """Return the inputs and the outputs of a segment.

    ends: the layer whose attention it takes in, None for the first. convs: the conv layers it computes.
    begins: the layer whose q, k and v it gives out, None for the last segment, which ends in the logits: of
    all rows, but of the last one only where conv layers make it run for whole prompts.
    """
    queries, keys = meta.num_heads * meta.head_dim, meta.num_kv_heads * meta.head_dim
    inputs = [Needed("hidden", None, "T", meta.hidden_size)]
    outputs = [Needed("bx", conv, "T", meta.hidden_size) for conv in convs]
    if ends is not None:
        inputs.append(Needed("attn", ends, "T", queries))
    inputs += [Needed("conv_state", conv, None, meta.hidden_size) for conv in convs]
    if begins is None:
        outputs.append(Needed("logits", None, 1 if convs else "T", meta.vocab_size))
        return inputs, outputs
    outputs += [
        Needed("q", begins, "T", queries),
        Needed("k", begins, "T", keys),
        Needed("v", begins, "T", keys),
    ]
    attention = meta.attention.get(meta.layers[begins].type)
    if attention is not None and attention.gate is not None:
        gates = {"head": meta.num_heads, "element": queries}
        outputs.append(Needed("gate", begins, "T", gates[attention.gate]))
    if ends is not None or convs:
        outputs.append(Needed("hidden", None, "T", meta.hidden_size))
    return inputs, outputs


def departures_from(needed: Sequence[Needed], tensors: Sequence[Tensor], path: str) -> Iterator[str]:
    """Yield a line for each tensor that is missing, too many, out of place or of another shape."""
    there = [(tensor.role, tensor.layer) for tensor in tensors]
    places = {one.place for one in needed}
    by_role = {one.role: one for one in needed}
    for one in needed:
        if one.place not in there:
            yield f"{path} lacks {one.role}" + ("" if one.layer is None else f" of layer {one.layer}")
    roles = [tensor.role for tensor in tensors]
    for role in dict.fromkeys(roles):
        if role in KNOWN_ROLES and role not in by_role:
            yield f"{path} has {role}, which does not belong there"
        if role not in _OF_CONV and roles.count(role) > 1:
            yield f"{path} has {role} more than once"
    for role, layer in dict.fromkeys(place for place in there if place[0] in _OF_CONV):
        if there.count((role, layer)) > 1:
            yield f"{path} has {role} of layer {layer} more than once"
        if role in by_role and (role, layer) not in places:
            yield f"{path} has {role} of layer {layer}, which does not belong there"
    for tensor in tensors:
        wanted = by_role.get(tensor.role)
        if wanted is not None and not wanted.fits(tensor.shape):
            yield f"{path}: {tensor.name} has shape {tensor.shape}, but {tensor.role} needs {wanted}"
