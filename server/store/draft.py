"""An entry for a .rkllm file that nobody has described yet: what its repository and its base model tell."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_CONTEXT = 4096  # what the vendor's toolkit converts for unless told otherwise
_OVERHEAD_MB = 400  # of the runtime and a KV cache of that length
_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repetition_penalty": "repeat_penalty",
}
_FAMILIES = re.compile(r"(?i)[-_.](rk3588s?|rkllm|w8a8(_g\d+)?|w4a16(_g\d+)?|v?1\.[0-9.]+)(?=[-_.]|$)")


@dataclass
class Draft:
    """What is known so far. None, or empty: not known. comments: by key, why a value is what it is."""

    id: str
    file: str
    source: Mapping[str, str] | None = None
    tokenizer: str | None = None
    template: str | None = None
    eos: list[str | int] = field(default_factory=list)
    sampling: dict[str, float] = field(default_factory=dict)
    switch: bool = False
    context_length: int | None = None
    memory_mb: int | None = None
    license: str | None = None
    license_url: str | None = None
    size_bytes: int = 0

    def text(self) -> str:
        """Return the entry as YAML, its id first, not indented."""
        lines = [f"{_value(self.id)}:", "  backend: rkllm"]
        if self.source is not None:
            lines.append(f"  source: {_value(dict(self.source))}")
        lines += [f"  file: {_value(self.file)}", f"  template: {_value(self.template)}"]
        if self.tokenizer is not None:
            repo = self.tokenizer if self.tokenizer.startswith("/") else {"repo": self.tokenizer}
            lines.append(f"  tokenizer: {_value(repo)}")
        if self.eos:
            lines.append(f"  eos: {_value(self.eos)}")
        if self.switch:
            lines.append("  thinking: {default: on, switch: enable_thinking}")
        known = self.context_length is not None
        remark = "" if known else "  # the toolkit's default; say what the file was converted with"
        lines.append(f"  context_length: {self.context_length or DEFAULT_CONTEXT}{remark}")
        remark = "" if self.memory_mb is not None else "  # estimated from the file's size"
        lines.append(
            f"  memory_mb: {self.memory_mb or round(self.size_bytes / 2**20) + _OVERHEAD_MB}{remark}"
        )
        lines.append(f"  capabilities: [{'chat, thinking' if self.switch else 'chat'}]")
        remark = "" if self.sampling else "  # a moderate start: take the model card's values"
        lines.append(f"  sampling: {_value(self.sampling or {'temperature': 0.7, 'top_p': 0.9})}{remark}")
        license = {"id": self.license} | ({} if self.license_url is None else {"url": self.license_url})
        lines.append(f"  license: {_value(license)}")
        return "\n".join(lines) + "\n"


def id_for(name: str) -> str:
    """Return an id for a file or repository of this name: short, without board, runtime and quantization."""
    name = name.removesuffix(".rkllm")
    while (shorter := _FAMILIES.sub("", name)) != name:
        name = shorter
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:64] or "model"


def learn_from_card(draft: Draft, card: Mapping[str, Any]) -> None:
    """Take licence and base model from the front matter of a repository's README, where they stand there."""
    license = card.get("license_name") or card.get("license")
    if draft.license is None and isinstance(license, str):
        draft.license = license
        link = card.get("license_link")
        if isinstance(link, str) and re.fullmatch(r"https?://[^\s/]+/\S+", link):
            draft.license_url = link
    base = card.get("base_model")
    base = base[0] if isinstance(base, list) and base else base
    if draft.tokenizer is None and isinstance(base, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", base):
        draft.tokenizer = base


def learn_from_base(draft: Draft, files: Mapping[str, bytes]) -> None:
    """Take template, ends and sampling from the small files of the base model, as far as it has them."""
    config, generation = _json(files, "tokenizer_config.json"), _json(files, "generation_config.json")
    template = files.get("chat_template.jinja", b"").decode(errors="replace") or str(
        config.get("chat_template") or ""
    )
    if draft.template is None and template:
        draft.template = "model"
    draft.switch = draft.switch or "enable_thinking" in template
    if not draft.eos:
        ends = generation.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        draft.eos = [end for end in ends if type(end) is int and 0 <= end < 2**31]
        token = config.get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        if not draft.eos and isinstance(token, str) and token:
            draft.eos = [token]
    if not draft.sampling:
        values = {ours: generation.get(theirs) for theirs, ours in _SAMPLING.items()}
        draft.sampling = {
            key: value for key, value in values.items() if type(value) in (int, float) and value
        }


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        found = json.loads(files.get(name, b"{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _value(value: object) -> str:
    """Return a value as YAML on one line: as JSON, which YAML reads too, but plainer where that is safe."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str) and re.fullmatch(
        r"[A-Za-z/][A-Za-z0-9/._-]*[A-Za-z/_-][A-Za-z0-9/._-]*", value
    ):
        return value if value.lower() not in _WORDS else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null"})  # not texts to YAML
