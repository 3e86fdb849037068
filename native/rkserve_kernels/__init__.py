"""The hybrid engine's inner loops. Importing fails with ImportError on a processor they are not made for."""

from rkserve_kernels._kernels import (
    apply_gate,
    attend,
    find_largest,
    from_half,
    lanes,
    rms_norm,
    rotate,
    run_segment,
    segment,
    threads,
    to_half,
    weigh_logits,
    write_rows,
)

__all__ = [
    "apply_gate",
    "attend",
    "find_largest",
    "from_half",
    "lanes",
    "rms_norm",
    "rotate",
    "run_segment",
    "segment",
    "threads",
    "to_half",
    "weigh_logits",
    "write_rows",
]
