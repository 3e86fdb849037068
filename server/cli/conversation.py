"""A chat with a server of the OpenAI API: requests, streamed answers, the history. Prints nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from server.cli.console import CommandError
from server.settings import API_KEY_VARIABLE, is_loopback

CONNECT_S = 5.0


class KeyWanted(CommandError):
    """The server lets nobody in without a key, or not with this one."""


@dataclass(frozen=True)
class Piece:
    """A part of an answer as it comes; `thinking` for reasoning before the answer proper."""

    text: str
    thinking: bool = False


@dataclass(frozen=True)
class Took:
    """What an answer took: tokens as the server counted them, seconds as seen here."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_s: float
    decode_s: float
    finish_reason: str | None

    def summary(self) -> str:
        """Return a line for a person."""
        rate = (self.completion_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0
        speed = f", {rate:.1f} tok/s" if self.completion_tokens > 1 and rate else ""
        cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
        cut = ", cut at the limit of tokens" if self.finish_reason == "length" else ""
        return (
            f"{self.completion_tokens} tokens{speed}, first after {self.first_s:.2f} s; "
            f"prompt {self.prompt_tokens} tokens{cached}{cut}"
        )


class Client:
    """A connection to a server. Close it by leaving its `with` block."""

    def __init__(
        self, http: httpx2.Client, url: str, models: Mapping[str, Sequence[str]], default: str | None = None
    ) -> None:
        """models: the ids of the server's models, each with its further names. default: its own, by id."""
        self._http = http
        self._url = url
        self._models = list(models)
        self._default = default
        self._ids = {name: model for model, names in models.items() for name in names}
        self._ids |= {model: model for model in models}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def choose_model(self, default: str | None) -> str:
        """Return the default's id if the server has it, else the server's own default, else its only model.

        default: an id or an alias. Raises CommandError.
        """
        if default is not None and default in self._ids:
            return self._ids[default]
        if self._default is not None:
            return self._default
        if len(self._models) == 1:
            return self._models[0]
        if not self._models:
            raise CommandError(
                f"the server at {self._url} has no model; rkserve pull smollm2-135m fetches one"
            )
        raise CommandError(f"which model? rkserve chat ID, of {', '.join(self._models)}")

    def stream(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a streamed answer. Raises CommandError with the server's own words."""
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise CommandError(_error_message(response))
                for line in response.iter_lines():
                    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                    if data and data != "[DONE]":
                        chunk = json.loads(data)
                        if "error" in chunk:
                            raise CommandError(str(chunk["error"].get("message", "the answer broke off")))
                        yield chunk
        except httpx2.TransportError as error:
            raise CommandError(f"the server at {self._url} went away: {error}") from error


def connect(url: str, key: str | None) -> Client | None:
    """Return a client of the server at `url`, None if nothing listens there.

    Raises CommandError, KeyWanted where the server does not take the key.
    """
    if key is not None and not (key.isascii() and key.isprintable()):
        raise CommandError("the API key holds a character that no key has; copy it again")
    base = url.rstrip("/").removesuffix("/v1")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"{url} is no address of a server; it looks like http://rock-5c:8000")
    http = httpx2.Client(
        base_url=base,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        trust_env=not is_loopback(parts.hostname),  # a proxy has no business between this machine and itself
    )
    try:
        response = http.get("/v1/models", timeout=CONNECT_S)
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        http.close()
        return None
    except httpx2.TransportError as error:
        http.close()
        raise CommandError(
            f"what listens at {url} does not answer as a server of the OpenAI API: {error}"
        ) from error
    try:
        if response.status_code == 401:
            wants = "does not take this key" if key else "asks for a key"
            raise KeyWanted(f"the server at {url} {wants}: set {API_KEY_VARIABLE}, or --key KEY")
        if response.status_code != 200:
            raise CommandError(f"the server at {url} says: {_error_message(response)}")
        # Aliases and the default are additions of ours; other servers do not send them.
        listed = response.json()["data"]
        models = {str(model["id"]): [str(alias) for alias in model.get("aliases") or ()] for model in listed}
        default = next((str(model["id"]) for model in listed if model.get("default") is True), None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        http.close()
        raise CommandError(f"what listens at {url} is no server of the OpenAI API") from error
    except CommandError:
        http.close()
        raise
    return Client(http, url, models, default)


def _error_message(response: httpx2.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {response.status_code}"


class Conversation:
    """The messages so far with one model. `last`: what the last answer took, None if it did not end."""

    def __init__(
        self, client: Client, model: str, system: str | None, options: Mapping[str, float | int | None]
    ) -> None:
        self.model = model
        self.last: Took | None = None
        self._client = client
        self._options = {name: value for name, value in options.items() if value is not None}
        self._start = [{"role": "system", "content": system}] if system else []
        self._turns: list[dict[str, str]] = []

    def clear(self) -> None:
        """Forget everything said so far."""
        self._turns.clear()

    def ask(self, text: str) -> Generator[Piece, None, None]:
        """Send a message and yield the answer in pieces.

        An answer that is left before its end is kept as far as it came; a turn that failed, or came to
        nothing, is forgotten. Raises CommandError.
        """
        self.last = None
        question = {"role": "user", "content": text}
        body = {
            "model": self.model,
            "messages": [*self._start, *self._turns, question],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        said: list[str] = []
        failed = False
        try:
            yield from self._pieces(body, said)
        except CommandError:
            failed = True
            raise
        finally:
            if said and not failed:
                self._turns += [question, {"role": "assistant", "content": "".join(said)}]

    def _pieces(self, body: Mapping[str, Any], said: list[str]) -> Iterator[Piece]:
        started = time.monotonic()
        first = last = started
        reason: str | None = None
        usage: dict[str, Any] | None = None
        for chunk in self._client.stream(body):
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                reason = choice.get("finish_reason") or reason
                delta = choice.get("delta", {})
                for name in ("reasoning_content", "content"):
                    if text := delta.get(name):
                        last = time.monotonic()
                        first = last if first == started else first
                        if name == "content":
                            said.append(text)
                        yield Piece(text, thinking=name == "reasoning_content")
        if usage is not None:
            details = usage.get("prompt_tokens_details") or {}
            self.last = Took(
                prompt_tokens=usage["prompt_tokens"],
                cached_tokens=details.get("cached_tokens") or 0,
                completion_tokens=usage["completion_tokens"],
                first_s=first - started,
                decode_s=last - first,
                finish_reason=reason,
            )
