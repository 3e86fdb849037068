"""What a Hugging Face checkpoint holds beside its weights: tokenizer, template, end tokens, licence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer

from backends.hybrid.meta import License
from convert.errors import ConvertError
from convert.files import check_no_stream
from convert.hf_config import read_config
from convert.licenses import license_id

TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"
_GENERATION_FILE = "generation_config.json"
_TEMPLATE_FILE = "chat_template.jinja"
_LICENSE_NAMES = ("license", "licence", "copying")
_LONGEST_TEXT = 1_000_000  # bytes of a licence or a model card


def read_tokenizer(directory: Path) -> tuple[str, Tokenizer]:
    """Return the text of tokenizer.json and what it makes. Raises ConvertError."""
    path = directory / TOKENIZER_FILE
    check_no_stream(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConvertError(
            f"{path} cannot be read ({error}). A checkpoint with another kind of tokenizer (tokenizer.model, "
            "vocab.json) has to be saved once by transformers, which writes that file."
        ) from error
    try:
        return text, Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more exact
        raise ConvertError(f"{path} is no tokenizer ({error}). Fetch it again from the publisher.") from error


def chat_template(directory: Path) -> str | None:
    """Return the chat template, from its own file or from the tokenizer's config; None if there is none."""
    path = directory / _TEMPLATE_FILE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConvertError(f"{path} cannot be read ({error}). Fetch it again.") from error
    found = _optional(directory / _CONFIG_FILE).get("chat_template")
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        return None
    try:
        found.encode()
    except UnicodeError as error:  # half of a character, as JSON can spell it
        raise ConvertError(
            f"{directory / _CONFIG_FILE}: chat_template is no text ({error}). Fetch it again."
        ) from error
    return found


def eos_token_ids(directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    """Return the ids that end an answer: those for generating, the config's, else the tokenizer's own.

    Raises ConvertError if none is named.
    """
    found: list[int] = []
    for source in (_optional(directory / _GENERATION_FILE), config):
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found += [token_id for token_id in ids if type(token_id) is int and token_id not in found]
    if not found:
        token = _optional(directory / _CONFIG_FILE).get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        token_id = tokenizer.token_to_id(token) if isinstance(token, str) else None
        found = [] if token_id is None else [token_id]
    if not found:
        raise ConvertError(
            f"{directory} names no token as the end of an answer (eos_token_id in {_GENERATION_FILE} or "
            "config.json): answers would never end. Fetch the publisher's files."
        )
    return found


def license_of(directory: Path, name: str) -> tuple[License, str | None, str | None]:
    """Return the licence with the note of the change, its text and the notice that must go with it.

    The licence's name is the model card's, NOASSERTION where that names none.
    """
    card = _card(directory / "README.md")
    tag, own, link = (card.get(key) for key in ("license", "license_name", "license_link"))
    if isinstance(tag, str) and tag.lower() == "other" and isinstance(own, str):
        tag = own
    text, notice_text = _text(directory, _LICENSE_NAMES), _text(directory, ("notice",))
    notice = f"The weights of {name} were changed: converted to float32 and cut into ONNX segments."
    if isinstance(link, str) and link.startswith("https://"):
        notice += f" Licence text: {link}"
    if not isinstance(tag, str):
        notice += " The checkpoint names no licence: ask its publisher."
        return License(id="NOASSERTION", notice=notice), text, notice_text
    return License(id=license_id(tag), notice=notice), text, notice_text


def _text(directory: Path, stems: tuple[str, ...]) -> str | None:
    """Return the text of a file called so, with any ending and in any case."""
    for path in sorted(directory.iterdir()):
        stem = path.name.lower().removesuffix(".txt").removesuffix(".md")
        if stem in stems and path.is_file():
            return _beginning(path)
    return None


def _beginning(path: Path) -> str:
    """Return the text of a file, "" for what is no file: a pipe could keep one waiting."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_LONGEST_TEXT).decode(errors="replace")


def _card(path: Path) -> dict[str, Any]:
    """Return what stands between the two lines of dashes at the top of a model card."""
    try:
        text = _beginning(path)
        if not text.startswith("---"):
            return {}
        data = yaml.safe_load(text.split("---", 2)[1])
    # A card says what it likes: dates that are none, numbers without end, brackets in brackets.
    except (OSError, IndexError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return data if isinstance(data, dict) else {}


def _optional(path: Path) -> dict[str, Any]:
    """Return a JSON object, {} where there is no such file. Raises ConvertError for a damaged one."""
    return read_config(path) if path.is_file() else {}
