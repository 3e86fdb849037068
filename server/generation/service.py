"""From a request to a job: which model, can it do that, its prompt, does it fit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from backends.base import Image, Span
from server.errors import ContextLengthExceeded, InvalidRequest
from server.generation.capabilities import CALLS_READ, check_capabilities, check_images, shown_tools
from server.generation.generation import Answering, Generation
from server.generation.overflow import Shown, without_oldest, without_tools
from server.generation.params import choice_params
from server.generation.request import GenerationRequest
from server.generation.side_model import is_side_task
from server.generation.structured import StructuredGeneration, asked_again, take_form
from server.generation.thinking import begun_mark
from server.images.loader import ImageLoader
from server.registry import Entry, Registry, adapter_of
from server.registry.installing import not_installed
from server.scheduling import Dispatcher, Job
from server.settings import Settings
from server.templates import Templates
from server.templates.messages import images_of

# Tokens that no text of the prompt stands for: a beginning-of-sequence token and the like.
EXTRA_TOKENS = 8
# Where the oldest turns make room, an answer gets at least this part of the context.
ROOM_SHARE = 4
# How a prompt that is too long is made shorter, by the entry's overflow, and what then is said to be missing.
SHORTENING = {"truncate_oldest": (without_oldest, "messages"), "drop_tools": (without_tools, "tools")}
# Characters from which on rendering (some 40 ms a megabyte) would hold up the streams of others.
LARGE = 250_000


class GenerationService:
    """Prepares requests. One for the whole server; holds no state of any client.

    calls_read: the forms of tool calls that are read from answers.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        templates: Templates,
        dispatcher: Dispatcher,
        image_loader: ImageLoader | None = None,
        calls_read: Collection[str] = CALLS_READ,
    ) -> None:
        self._models_dir = settings.models_dir
        self._default_model = settings.default_model
        self._registry = registry
        self._templates = templates
        self._dispatcher = dispatcher
        self._images = image_loader or ImageLoader(settings)
        self._calls_read = calls_read

    def installed(self, name: str) -> Entry:
        """Return the installed entry of an id or alias. Raises ModelNotFound and ModelNotInstalled."""
        entry = self._registry.resolve(name)
        for needed in (self._registry.host(entry), entry):
            if not needed.installed(self._models_dir):
                raise not_installed(needed, for_adapter=None if needed is entry else entry.id)
        return entry

    def known(self, name: str | None) -> str | None:
        """Return the id of the entry that a name, or none, means, installed or not. None if it means none."""
        name = name or self._default_model
        try:
            return self.chosen(None).id if name is None else self._registry.resolve(name).id
        except InvalidRequest:  # ModelNotFound is one
            return None

    def chosen(self, name: str | None) -> Entry:
        """Return the installed entry of a name; for none the default model, or the only one there is.

        Raises as `installed` does, and InvalidRequest where a name is needed and missing.
        """
        if name := name or self._default_model:
            return self.installed(name)
        if (only := self._registry.only()) is not None:
            return only
        there = self._registry.installed()
        names = ", ".join(entry.id for entry in there)
        raise InvalidRequest(
            "The request names no model, and this server has no default (RKSERVE_DEFAULT_MODEL). "
            + (f"Installed: {names}." if there else "None is installed; rkserve models lists what there is."),
            "model",
        )

    async def prepare(self, request: GenerationRequest) -> Answering:
        """Check a request, render its prompt and make its job. Raises ApiError subclasses."""
        asked = self.chosen(request.model)
        entry = self._taking(request, asked)
        request, form = await take_form(request, entry)
        images = await self._taken_images(entry, request)
        generation = await self._prepare(entry, request, images)
        generation.by_side_model = entry is not asked
        if form is None:
            return generation

        async def again(wrong: Mapping[int, tuple[str, str]]) -> Generation:
            requests = {index: asked_again(request, *said, form) for index, said in wrong.items()}
            return await self._again(entry, requests, images)

        return StructuredGeneration(generation, form, again)

    def _taking(self, request: GenerationRequest, entry: Entry) -> Entry:
        """Return the entry that answers: the side model where there is one and the request is for it."""
        if entry.side_model is None or not is_side_task(request.task):
            return entry
        side = self._registry.entries[entry.side_model]
        return side if side in self._registry.installed() else entry

    async def _again(
        self, entry: Entry, requests: Mapping[int, GenerationRequest], images: Sequence[Image]
    ) -> Generation:
        """Return the generation of some choices, by their index, each of a request of its own.

        They are about the images of the first one: fetched again, one might be gone or another.
        """
        made = [(index, await self._prepare(entry, request, images)) for index, request in requests.items()]
        params = tuple(generation.job.params[index] for index, generation in made)
        return made[0][1].of(params)

    async def _taken_images(self, entry: Entry, request: GenerationRequest) -> list[Image]:
        """Return the images of a request that the entry can honour. Raises what is said of one it cannot."""
        check_capabilities(request, entry)
        parts = images_of(request.messages)
        check_images(parts, entry, self._models_dir)
        return await self._images.load(parts)

    async def _prepare(self, entry: Entry, request: GenerationRequest, images: Sequence[Image]) -> Generation:
        shown = Shown(request.messages, shown_tools(request, entry, self._calls_read))
        prompt = await self._render(entry, request, shown)
        dropped = ["tools"] if request.tools and not shown.tools else []
        shorten = (
            partial(self._shorter_job, entry, request, shown, images)
            if entry.overflow in SHORTENING
            else None
        )
        job = self._job(entry, request, prompt, images)
        try:
            await self._check_length(entry, prompt)
        except ContextLengthExceeded:
            shorter = None if shorten is None else await shorten()
            if shorter is None:
                raise
            job = shorter
            dropped.append(SHORTENING[entry.overflow][1])
        begun = ""
        if entry.thinking is not None:
            marks = (entry.thinking.open, entry.thinking.close)
            begun = begun_mark(_template_tail(prompt, 2 * max(map(len, marks))), *marks)
        return Generation(self._dispatcher, job, reasoning_begun=begun, dropped=dropped, shorten=shorten)

    async def _render(self, entry: Entry, request: GenerationRequest, shown: Shown) -> list[Span]:
        render = partial(
            self._templates.render,
            entry,
            shown.messages,
            shown.tools,
            thinking=request.thinking if entry.thinking is not None else None,
            continue_final=request.continue_final,
        )
        small = not shown.tools and sum(map(_text_length, shown.messages)) < LARGE
        if small and self._templates.quick(entry):
            return render()
        return await asyncio.to_thread(render)

    def _context_length(self, entry: Entry) -> int:
        """Return the context there is: the entry's, or the loaded model's if that is less."""
        info = self._dispatcher.status_of(entry).info
        return entry.context_length if info is None else min(entry.context_length, info.context_length)

    def _job(
        self, entry: Entry, request: GenerationRequest, prompt: list[Span], images: Sequence[Image]
    ) -> Job:
        params = choice_params(request, entry, prompt, images, adapter_of(entry, self._models_dir))
        return Job(entry=entry, client=request.client, user=request.user, params=params)

    async def _shorter_job(
        self, entry: Entry, request: GenerationRequest, shown: Shown, images: Sequence[Image]
    ) -> Job | None:
        """Return the job without its oldest turns or without its tools, as the entry's overflow says.

        None if that does not help or the model is not loaded. Where turns go, an answer gets room as well:
        what was asked for, or a quarter of the context if that is less. Without its tools a prompt only has
        to be one that would not have been refused.
        """
        context = self._context_length(entry)
        room = 1
        if entry.overflow == "truncate_oldest":
            room = min(request.max_tokens or entry.max_tokens, context // ROOM_SHARE)

        async def fits(less: Shown) -> bool:
            try:
                tokens = await self._dispatcher.count(entry, await self._render(entry, request, less))
            except ContextLengthExceeded:
                return False
            return tokens is not None and tokens + room <= context

        shorten, _ = SHORTENING[entry.overflow]
        less = await shorten(shown, fits)
        return (
            None
            if less is None
            else self._job(entry, request, await self._render(entry, request, less), images)
        )

    async def _check_length(self, entry: Entry, prompt: list[Span]) -> None:
        """Raise ContextLengthExceeded where a loaded model can tell; else the worker will.

        A token stands for at least one byte, so a prompt of fewer bytes than the context need not be counted,
        unless there are images in it.
        """
        context = self._context_length(entry)
        if all(span.image is None for span in prompt):
            most = sum(len(span.text) for span in prompt) * 4 + EXTRA_TOKENS
            if most < context:
                return
            if sum(len(span.text.encode()) for span in prompt) + EXTRA_TOKENS < context:
                return
        tokens = await self._dispatcher.count(entry, prompt)
        if tokens is not None and tokens >= context:
            raise ContextLengthExceeded(
                f"The prompt has {tokens} tokens, and the context of {entry.id} is {context} tokens, prompt "
                "and answer together. Shorten the conversation, or begin a new one.",
                "messages",
            )


def _text_length(message: Mapping[str, Any]) -> int:
    content = message.get("content") or ""
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _template_tail(prompt: list[Span], length: int) -> str:
    """Return at least the last `length` characters of the prompt, as far as they are the template's own."""
    tail = ""
    for span in reversed(prompt):
        if not span.control or len(tail) >= length:
            break
        tail = span.text + tail
    return tail
