"""What the compiled module offers. Arrays are checked: TypeError or ValueError, never memory out of bounds.

Nothing is kept of an array after a call. All let go of the interpreter's lock while they compute.
Axes: T queries, S keys, H query heads, K key/value heads, D head_dim, V vocabulary.
"""

from typing import Any

from typing_extensions import Buffer  # what numpy arrays are

class Threads: ...

def threads(count: int) -> Threads:
    """Start threads that `attend` shares its work with, the caller counted; they end with the object.

    For one caller at a time.
    """

def attend(
    threads: Threads,
    q: Buffer,
    keys: Buffer,
    values: Buffer,
    out: Buffer,
    scale: float,
    window: int,
    softcap: float,
    lanes: int = ...,
) -> None:
    """Write the causal attention of q, (T, H, D) float32, into out of that shape.

    keys, values: (K, S, D), float32 or float16, of one type and one layout; rows contiguous, heads any
    distance apart. The queries stand at the last T of the S positions. scale: factor of q . k. window: how
    many of the latest keys a query sees, its own included, 0 for all. softcap: c in c * tanh(score / c),
    0 for none. D must be a multiple of 8, at most 512. lanes: of the vectors that one token is computed
    with where they fill D: lanes() or, with AVX-512, 8; by default lanes(). Computed in float32.
    """

def lanes() -> int:
    """Return how many floats the widest vectors hold that this processor has: 4, 8 or 16."""

class Segment: ...

def segment(threads: Threads, steps: list[tuple[Any, ...]]) -> Segment:
    """Prepare steps over float32 vectors, to be computed in order by `run_segment`.

    The arrays are held as long as the object. A step is one of these, its result last, all of one size:
    ("norm", x, weight, eps, out), ("add", x, y, out), ("multiply", x, y, out), ("silu", x, out),
    ("gelu", x, out), the one by tanh, ("conv", state, x, kernel, out) with state (taps - 1, size) and kernel
    (taps, size), whose last row is x's; or a product with a matrix (N, K), ("product", x, bits, values,
    scales, offsets, out). bits 32: values (N, K) float32. bits 4 or 8: values (N, K / 32, 4 * bits) uint8, of
    4 bits two in a byte, the first in the lower half; scales (N, K / 32) float32; offsets the same, or None.
    A weight is scale * (value - 2^(bits - 1)) + offset; x is rounded to 8 bits in blocks of 32 that share a
    scale. A result may take the place of x or y, but of nothing else that its step reads, and of nothing a
    product reads.
    """

def run_segment(segment: Segment) -> None:
    """Compute the steps. For one caller at a time, as are the threads."""

def rms_norm(x: Buffer, weight: Buffer, eps: float) -> None:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in place; float32."""

def rotate(x: Buffer, cos: Buffer, sin: Buffer, interleaved: bool) -> None:
    """Rotate pairs of x, (T, H, D) float32, in place by cos and sin, (T, pairs) float32.

    Dimension i pairs with i + pairs; interleaved: 2 i with 2 i + 1. The others stay.
    """

def apply_gate(x: Buffer, gate: Buffer) -> None:
    """x *= sigmoid(gate), in place; each gate is for x.size / gate.size values in a row; float32."""

def write_rows(rows: Buffer, to: Buffer) -> None:
    """Write rows, (T, K, D) float32, into a part of a cache, (K, T, D) float32 or float16."""

def to_half(source: Buffer, target: Buffer) -> None:
    """Round float32 to float16: to nearest, ties to even."""

def from_half(source: Buffer, target: Buffer) -> None:
    """Widen float16 to float32: exact."""

def weigh_logits(logits: Buffer, weights: Buffer, temperature: float) -> None:
    """weights[i] = e^((logits[i] - largest) / temperature), (V,) float64."""

def find_largest(values: Buffer, indices: Buffer) -> None:
    """Fill indices, int64, with those of the largest values.

    The largest first, the lower index first among equals; values float32 or float64.
    """
