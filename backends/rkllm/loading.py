"""Loads a .rkllm model: library, tokenizer, session, image encoder, and the way back where one fails."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from backends.base import BackendError
from backends.discovery import RKLLM_ABI, parse_version, read_version
from backends.engine import Backend, Progress
from backends.rkllm.backend import RkllmBackend
from backends.rkllm.capture import Capture
from backends.rkllm.encoder import Encoder
from backends.rkllm.library import LayoutMismatch, LibraryError, open_library
from backends.rkllm.parameters import SessionOptions
from backends.rkllm.session import Session
from backends.spec import ModelSpec

if TYPE_CHECKING:
    from backends.rkllm.images import Images

OPEN_FILES = 65_536


def load(spec: ModelSpec, progress: Progress) -> Backend:
    """Load a .rkllm model with the library the server has chosen. Raises BackendError.

    `progress` is called from this thread; the library itself reports nothing while it reads the model.
    """
    progress(0.0, "runtime")
    path, version = chosen_library(spec)
    raise_file_limit()
    capture = Capture()
    capture.start()
    try:
        library = open_library(path)
        progress(0.05, "tokenizer")
        encoder = Encoder(spec)
        progress(0.1, "model")
        session = Session(library, session_options(spec), capture)
        try:
            images = _images(spec)
            try:
                backend = RkllmBackend(spec, version, encoder, session, capture, images)
            except BaseException:
                if images is not None:
                    images.close()
                raise
        except BaseException:
            session.close()
            raise
    except LibraryError as error:
        capture.close()
        foreign = isinstance(error, LayoutMismatch)
        raise BackendError("runtime_version_mismatch" if foreign else "load_failed", error.message) from error
    except BaseException:
        capture.close()
        raise
    progress(1.0, "ready")
    return backend


def chosen_library(spec: ModelSpec) -> tuple[Path, Version]:
    """Return the library the server has chosen and its version; one we cannot drive is refused unopened."""
    if spec.rkllm.library is None:
        raise BackendError(
            "load_failed",
            f"No runtime library was chosen for {spec.model_id}. rkserve runtime install FILE|URL puts "
            "librkllmrt.so where it is looked for.",
        )
    path = Path(spec.rkllm.library)
    try:
        text = read_version(path, "rkllm")
    except OSError as error:
        raise BackendError("load_failed", f"{path} cannot be read: {error.strerror}.") from error
    version = None if text is None else parse_version(text)
    if version is None or not RKLLM_ABI.contains(version, prereleases=True):
        raise BackendError(
            "runtime_version_mismatch",
            f"{path} is librkllmrt {text or 'of an unknown version'}, and only {RKLLM_ABI} can be used: "
            "others have another data layout. Install librkllmrt 1.3.1: rkserve runtime install FILE|URL.",
        )
    return path, version


def session_options(spec: ModelSpec) -> SessionOptions:
    """Return how a model is to be loaded. Raises BackendError where its file is not there."""
    options = spec.rkllm
    model = Path(spec.path)
    if not model.is_file():
        raise BackendError(
            "load_failed", f"There is no file {model}. Pull the model, or correct file: in its entry."
        )
    return SessionOptions(
        model=model,
        context_length=spec.context_length,
        max_tokens=min(spec.max_tokens, spec.context_length),
        base_domain_id=options.base_domain_id,
        cpus=options.cpus,
        embed_flash=options.embed_flash,
        n_keep=options.n_keep,
        skip_special_token=options.skip_special_token,
        clear_after_abort=options.clear_after_abort,
    )


def raise_file_limit() -> None:
    """Allow more open files where that is allowed: the library opens some for every buffer of the NPU."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _images(spec: ModelSpec) -> Images | None:
    """Load the image encoder, after the language model as in the vendor's demo. Raises BackendError."""
    if spec.vision is None:
        return None
    from backends.rkllm.images import Images  # numpy and Pillow, for models that see only

    return Images(spec.vision, spec.context_length)
