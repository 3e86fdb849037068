"""Which values the numbers and names of a meta2.json may have, each by itself.

Pure. The limits are far beyond any model: they keep a damaged or hostile description from overflowing
float32, from dividing by nothing and from asking for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backends.hybrid.meta import Attention, File, Meta, Rope

MOST_TOKENS = 2**31 - 1  # ids and positions are int32
LARGEST_SIZE = 2**20
LONGEST_CALL = 4096
LONGEST_NAME_BYTES = 255  # of a file on Linux
_FACTOR = (1e-6, 1e6)
_THETA = (1.0, 1e12)
_EPS = (1e-12, 1.0)

# Parameters a scaling type needs, as in Hugging Face configs.
_FACTORS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "ntk": ("factor",),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow"),
}
_LENGTHS = {
    "llama3": ("original_max_position_embeddings",),
    "yarn": ("original_max_position_embeddings",),
}
_SHARES = {"proportional": ("partial_rotary_factor",)}
_OPTIONAL = {"proportional": {"factor": _FACTOR}, "yarn": {"truncate": (0.0, 1.0)}}


def out_of_range(meta: Meta) -> Iterator[str]:
    """Yield a line for each number that no model can have."""
    for name in ("hidden_size", "num_heads", "num_kv_heads", "head_dim"):
        yield from _whole(name, getattr(meta, name), LARGEST_SIZE)
    for name in ("vocab_size", "context_length"):
        yield from _whole(name, getattr(meta, name), MOST_TOKENS)
    yield from _number("norm_eps", meta.norm_eps, _EPS)
    for name in ("residual_scale", "logits_scale", "logits_softcap"):
        yield from _number(name, getattr(meta, name), _FACTOR)
    yield from _number("embedding.scale", meta.embedding.scale, _FACTOR)
    if meta.lengths != sorted(set(meta.lengths)) or not meta.lengths or meta.lengths[0] != 1:
        yield f"lengths is {meta.lengths}, but must rise from 1"
    elif meta.lengths[-1] > LONGEST_CALL:
        yield f"lengths goes up to {meta.lengths[-1]}, but a call takes at most {LONGEST_CALL} tokens"
    for token_id in meta.eos_token_ids:
        if not 0 <= token_id < meta.vocab_size:
            yield f"eos_token_ids holds {token_id}, which is outside the vocabulary of {meta.vocab_size}"
    for name, attention in meta.attention.items():
        yield from _attention(f"attention.{name}", attention, meta.head_dim)


def bad_file_names(files: Iterable[File]) -> Iterator[str]:
    """Yield a line for each name that is no plain name of a file, or stands for two different files."""
    known: dict[str, File] = {}
    for file in files:
        if not is_plain(file.file):
            yield f"{_shown(file.file)} is no name of a file inside the folder"
        elif known.setdefault(file.file, file) != file:
            yield f"{file.file} is named twice, with different sizes or hashes"


def is_plain(name: str) -> bool:
    """Say whether a name can only be that of a file directly in a folder."""
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and name.isprintable()  # no NUL, no line break that forges lines of a list, no half of a character
        and len(name.encode()) <= LONGEST_NAME_BYTES
    )


def _shown(name: str) -> str:
    return repr(name) if len(name) <= LONGEST_NAME_BYTES else f"{name[:40]!r} and more"


def _attention(path: str, attention: Attention, head_dim: int) -> Iterator[str]:
    if attention.window is not None:
        yield from _whole(f"{path}.window", attention.window, MOST_TOKENS)
    yield from _number(f"{path}.scale", attention.scale, _FACTOR)
    yield from _number(f"{path}.softcap", attention.softcap, _FACTOR)
    if attention.rope:
        yield from _rope(f"{path}.rope", attention.rope, head_dim)


def _rope(path: str, rope: Rope, head_dim: int) -> Iterator[str]:
    if not 0 < rope.rotary_dim <= head_dim or rope.rotary_dim % 2:
        yield f"{path}.rotary_dim is {rope.rotary_dim}, but must be even and at most head_dim {head_dim}"
    yield from _number(f"{path}.theta", rope.theta, _THETA)
    if rope.scaling is None:
        return
    kind, parameters, path = rope.scaling.type, rope.scaling.parameters, f"{path}.scaling.parameters"
    ranges = {name: _FACTOR for name in _FACTORS.get(kind, ())}
    ranges |= {name: (1.0, float(MOST_TOKENS)) for name in _LENGTHS.get(kind, ())}
    ranges |= {name: (0.0, 1.0) for name in _SHARES.get(kind, ())}
    optional = _OPTIONAL.get(kind, {})
    if unknown := sorted(parameters.keys() - ranges.keys() - optional.keys()):
        yield f"{path} of a scaling of type {kind} has no {', '.join(unknown)}"
    for name, allowed in (ranges | optional).items():
        if name not in parameters and name in optional:
            continue
        if name not in parameters:
            yield f"{path}.{name} is missing"
        else:
            yield from _number(f"{path}.{name}", parameters[name], allowed)
    low, high = parameters.get("low_freq_factor"), parameters.get("high_freq_factor")
    if kind == "llama3" and low is not None and high is not None and not low < high:
        yield f"{path}.low_freq_factor is {low}, but must be below high_freq_factor {high}"
    if kind == "ntk" and rope.rotary_dim < 4:
        yield f"{path} stand where rotary_dim is {rope.rotary_dim}: a scaling of type ntk needs 4 at least"
    if kind == "yarn" and rope.theta <= 1:
        yield f"{path} stand where theta is {rope.theta}: a scaling of type yarn needs more than 1"


def _whole(path: str, value: int, most: int) -> Iterator[str]:
    if not 1 <= value <= most:
        yield f"{path} is {value}, but must be from 1 to {most}"


def _number(path: str, value: float | None, allowed: tuple[float, float]) -> Iterator[str]:
    """Check a number that is there; NaN lies in no range."""
    if value is not None and not allowed[0] <= value <= allowed[1]:
        yield f"{path} is {value}, but must be from {allowed[0]:g} to {allowed[1]:g}"
