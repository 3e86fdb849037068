"""The two names of torch that rknn-toolkit2 2.5.0 looks up when it is imported, and nothing behind them.

The toolkit uses torch for quantizing and for models of PyTorch's own format. For float16 builds of ONNX
graphs it computes nothing with it, and torch would be larger than all the rest. Stands last on the path, so
that an environment's real torch comes first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

__version__ = "2.4.0"

_Function = TypeVar("_Function", bound=Callable[..., object])


def no_grad() -> Callable[[_Function], _Function]:
    """Return a decorator that changes nothing."""
    return lambda function: function


nn = ModuleType("torch.nn")
nn.Module = type("Module", (), {})  # type: ignore[attr-defined]  # mypy knows a module's own names only
sys.modules["torch.nn"] = nn
