"""Whether what the library said while loading agrees with what the entry asks for. Pure.

A runtime that does not fit a model loads it without any error and answers garbage, or never stops: the log
is the only sign.
"""

from __future__ import annotations

from collections.abc import Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from backends.base import BackendError
from backends.discovery import RKLLM_ABI
from backends.rkllm.log import LoadLog


def disagreements(log: LoadLog, library: Version, wanted: str | None) -> tuple[list[str], list[str]]:
    """Return what does not fit, and what could not be checked; sentences for a person.

    library: the version in the file's bytes. wanted: the entry's specifier.
    """
    wrong, unchecked = [], []
    specifier = SpecifierSet(wanted or "") & RKLLM_ABI
    if log.runtime_version is None:
        unchecked.append("The runtime did not print its version, so only the one in its file is known.")
    elif log.runtime_version != library:
        wrong.append(f"The runtime says it is {log.runtime}, but its file says {library}.")
    if log.toolkit_version is None:
        unchecked.append("The model does not say which toolkit it was converted with.")
    elif not specifier.contains(log.toolkit_version, prereleases=True):
        wrong.append(f"The model was converted with rkllm-toolkit {log.toolkit}, not {specifier}.")
    return wrong, unchecked


def check(model_id: str, log: LoadLog, library: Version, wanted: str | None, *, strict: bool) -> list[str]:
    """Return warnings. Raises BackendError(runtime_version_mismatch) where strict and something is wrong.

    A runtime outside the versions whose data layout we know is refused in any case.
    """
    wrong, unchecked = disagreements(log, library, wanted)
    runtime = log.runtime_version
    foreign = runtime is not None and not RKLLM_ABI.contains(runtime, prereleases=True)
    if wrong and (strict or foreign):
        raise BackendError("runtime_version_mismatch", _refusal(model_id, wrong, may_try=not foreign))
    return [*wrong, *unchecked]


def _refusal(model_id: str, wrong: Sequence[str], *, may_try: bool) -> str:
    remedy = "Install the runtime that the model was converted for, or convert the model again"
    if may_try:
        remedy += "; to try it all the same, set runtime_check: warn in its entry"
    return (
        f"{model_id} and its runtime do not belong together: {' '.join(wrong)} Such a pair answers garbage "
        f"without any error. {remedy}."
    )
