"""Where the template that came with a model lies, and the tokens it wants to know. Compiles nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.templates.errors import TemplateError

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
MAX_BYTES = 16 * 2**20  # the largest seen, of a tokenizer with many added tokens, has 1 MB
MAX_TEMPLATE_CHARS = 500_000  # the longest seen has 30,000


@dataclass(frozen=True)
class Source:
    """A template's text, a name of its file for messages, and the tokens its tokenizer's settings name."""

    text: str
    name: str
    bos: str | None
    eos: str | None


def template_file(directories: Iterable[Path]) -> Path:
    """Return the file that holds a model's own template: the first found in the directories.

    The last of them is the model's own directory. Hugging Face keeps it as chat_template.jinja, before as a
    key of tokenizer_config.json. Raises TemplateError where there is none.
    """
    directories = list(dict.fromkeys(directories))
    for directory in directories:
        if (directory / TEMPLATE_FILE).is_file():
            return directory / TEMPLATE_FILE
        config = directory / CONFIG_FILE
        if config.is_file() and _settings(config).get("chat_template"):
            return config
    # The second by a name that stays different when a client sees both without where they are.
    nor = "".join(f", nor does RKSERVE_MODELS_DIR/{directory.name}" for directory in directories[1:])
    raise TemplateError(
        f"template: model, but {directories[0]} holds no {TEMPLATE_FILE} and no {CONFIG_FILE} with a "
        f"chat_template{nor}. Pull the model, or name a built-in template in its entry."
    )


def source_state(path: Path) -> tuple[tuple[int, ...] | None, ...]:
    """Return what tells one state of all the files that `read_source` reads from another.

    Raises OSError where the template itself cannot be looked at.
    """
    config = path.with_name(CONFIG_FILE)
    return _file_state(path), _file_state(config) if config.is_file() else None


def _file_state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def read_source(path: Path) -> Source:
    """Read a template file, or a tokenizer_config.json with a template in it. Raises TemplateError."""
    config = path if path.name == CONFIG_FILE else path.with_name(CONFIG_FILE)
    settings = _settings(config) if config.is_file() else {}
    text = _chosen(settings.get("chat_template"), path) if path.name == CONFIG_FILE else _text(path)
    if len(text) > MAX_TEMPLATE_CHARS:
        raise TemplateError(
            f"{path}: a chat template of {len(text)} characters is none. Pull the model again."
        )
    return Source(text, str(path), _token(settings.get("bos_token")), _token(settings.get("eos_token")))


def _text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TemplateError(f"{path}: {size} bytes are too many for it. Pull the model again.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(
            f"{path}: the template cannot be read ({error}). Check the entry's template key, or pull again."
        ) from error


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"{path}: not valid JSON ({error}). Pull the model again.") from error
    if not isinstance(settings, dict):
        raise TemplateError(f"{path}: must hold a JSON object. Pull the model again.")
    return settings


def _chosen(template: Any, path: Path) -> str:
    """Return the template, or of several, a list of {"name", "template"}, the one called default."""
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise TemplateError(
            f"{path}: chat_template must be a text, or a list with one that is called default. "
            "Name a built-in template or a .jinja file in the model's entry."
        )
    return template


def _token(value: Any) -> str | None:
    """Return a token's text, which stands there plainly or as the content of an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
