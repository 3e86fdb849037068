"""One worker as the server speaks to it: load, answers, counts, unload; watched, and ended when it hangs.

The only place that knows both the messages and the process. Knows no queue and no other worker. Everything
happens in the event loop's thread; what arrives is passed on in the same callback that read it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Self, cast

import msgspec

from backends.base import EmbedParams, GenerateParams, ModelInfo, ModelSpec, Span
from backends.protocol import (
    Cancel,
    Count,
    Counted,
    Delta,
    Embed,
    Failed,
    Finished,
    FrameDecoder,
    FromWorker,
    Generate,
    Heartbeat,
    Load,
    LoadFailed,
    Loading,
    Prefill,
    ProtocolError,
    Ready,
    ToWorker,
    Unload,
    Warned,
    encode_frame,
)
from server import errors
from server.errors import ApiError, BackendCrashed, BackendTimeout
from server.workers.failure import error_of, load_error_of, with_output
from server.workers.process import WorkerProcess, describe_exit
from server.workers.timeouts import Timeouts, most_tokens
from server.workers.vigil import Vigil

logger = logging.getLogger(__name__)

RunEvent = Prefill | Delta | Finished


class _Answer:
    """The run under way: where its events go, and the future that its end settles."""

    __slots__ = ("cancelled", "done", "on_event", "request_id")

    def __init__(
        self, request_id: int, on_event: Callable[[RunEvent], None], done: asyncio.Future[None]
    ) -> None:
        self.request_id = request_id
        self.on_event = on_event
        self.done = done
        self.cancelled = False


class WorkerClient(asyncio.Protocol):
    """A live worker. Make one with `start`.

    info: what the loaded model reports, None before. ending: it will run nothing more: it is being unloaded,
    killed, or dead. failure: why it ended, unless it was unloaded. gone: set once its process is reaped and
    its socket read to the end; never an exception.
    """

    def __init__(
        self,
        process: WorkerProcess,
        spec: ModelSpec,
        timeouts: Timeouts,
        on_loading: Callable[[Loading], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.info: ModelInfo | None = None
        self.ending = False
        self.failure: ApiError | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        self.runs_finished = 0
        self._loop = loop
        self._process = process
        self._spec = spec
        self._heartbeat_s = timeouts.heartbeat_s
        self._on_loading = on_loading
        self._decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)
        self._transport: asyncio.WriteTransport | None = None
        self._loaded: asyncio.Future[ModelInfo] = loop.create_future()
        self._answer: _Answer | None = None
        self._counts: dict[int, asyncio.Future[int]] = {}
        self._last_id = 0
        self._socket_open = True
        self._killed = False
        self._unloading = False
        self._vigil = Vigil(timeouts, self._hangs)
        process.exited.add_done_callback(lambda _: self._exited())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        spec: ModelSpec,
        timeouts: Timeouts,
        on_loading: Callable[[Loading], None],
    ) -> Self:
        """Start a worker and tell it to load. Returns without waiting for that: see `loaded`.

        Raises LoadFailed if there can be no process.
        """
        try:
            process, sock = WorkerProcess.spawn(command, spec.model_id)
        except OSError as error:
            raise errors.LoadFailed(
                f"No worker can be started for {spec.model_id}: {error}. "
                "If it names open files or processes, raise the limits of the service."
            ) from error
        client = cls(process, spec, timeouts, on_loading)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=sock)
        except BaseException:
            sock.close()
            client._socket_open = False
            client.kill(errors.LoadFailed(f"The worker of {spec.model_id} cannot be spoken to."))
            raise
        return client

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return self._answer is not None

    async def loaded(self) -> ModelInfo:
        """Wait until the model is loaded. Raises LoadError, or BackendTimeout if the load hangs."""
        return await asyncio.shield(self._loaded)

    async def generate(
        self, params: GenerateParams | EmbedParams, on_event: Callable[[RunEvent], None]
    ) -> None:
        """Make one answer, or one request's vectors; events go to `on_event`, the last of them Finished.

        One at a time. Returns when the worker is free again. Raises the ApiError that the run failed with;
        after `cancel` it returns or raises all the same. Not to be cancelled as a task: use `cancel`.
        """
        assert self._answer is None, "one run at a time"
        if self.ending:
            raise BackendCrashed(
                f"The worker of {self._spec.model_id} has just ended. Send the request again."
            )
        self._last_id += 1
        answer = _Answer(self._last_id, on_event, self._loop.create_future())
        if isinstance(params, EmbedParams):
            self._write(Embed(answer.request_id, params))
        else:
            self._write(Generate(answer.request_id, params))
        self._answer = answer
        self._process.output.forget()
        self._vigil.run_begins(most_tokens(params, self._spec.context_length))
        await answer.done

    def cancel(self) -> None:
        """End the run under way, if there is one, at its next token; a worker that will not is killed."""
        answer = self._answer
        if answer is None or answer.cancelled or self.ending:
            return
        answer.cancelled = True
        self._write(Cancel(answer.request_id))
        self._vigil.run_ends()
        self._vigil.must_end("did not stop an answer in time")

    async def count(self, prompt: list[Span]) -> int:
        """Return a prompt's length in tokens; works while a run goes on. Raises ApiError."""
        if self.ending or self.info is None:
            raise BackendCrashed(f"The worker of {self._spec.model_id} is not there. Send the request again.")
        self._last_id += 1
        request_id = self._last_id
        future: asyncio.Future[int] = self._loop.create_future()
        self._write(Count(request_id, prompt))
        self._counts[request_id] = future
        try:
            return await future
        finally:
            self._counts.pop(request_id, None)

    def unload(self) -> None:
        """Let an idle worker close its model and exit; one that does not is killed."""
        if self.ending:
            return
        self.ending = self._unloading = True
        self._write(Unload())
        self._vigil.must_end("did not unload its model in time")

    def kill(self, error: ApiError) -> None:
        """End the worker now; whoever waits for it gets `error`."""
        self.ending = self._killed = True
        self.failure = self.failure or error
        self._settle(error)
        self._process.kill()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses of asyncio's
        self._write(Load(self._spec, self._heartbeat_s))

    def data_received(self, data: bytes) -> None:
        if self._killed:
            return
        self._vigil.heard()
        decoded = False
        try:
            for message in self._decoder.feed(data):
                if type(message) is Delta:  # once a token: the way the throughput depends on
                    answer = self._answer
                    if answer is not None and answer.request_id == message.request_id:
                        answer.on_event(message)
                        decoded = True
                else:
                    self._take(message)
        except ProtocolError as error:
            self.kill(BackendCrashed(f"The worker of {self._spec.model_id} sent nonsense ({error})."))
        if decoded and self._answer is not None and not self._answer.cancelled:
            self._vigil.decoded()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._socket_open = False
        self.ending = True
        self._vigil.stop()
        if not self._process.exited.done():
            # Nothing more can be said to it, and it ends by itself when its socket has.
            self._vigil.must_end("closed its connection, did not exit")
        self._check_gone()

    def _take(self, message: FromWorker) -> None:
        answer = self._answer
        match message:
            case Heartbeat():
                pass
            case Loading():
                self._on_loading(message)
            case Ready(info=info):
                self._vigil.loaded()
                self.info = info
                if not self._loaded.done():
                    self._loaded.set_result(info)
            case LoadFailed(code=code, message=text):
                self.ending = True
                self._settle(load_error_of(code, text))
                self._vigil.must_end("did not exit after its load had failed")
            case Prefill(request_id=request_id, done=done, total=total):
                if answer is not None and answer.request_id == request_id and not answer.cancelled:
                    answer.on_event(message)
                    self._vigil.prefill(total - done)
            case Warned(message=text):
                self._warned(text)
            case Finished(request_id=request_id):
                if answer is not None and answer.request_id == request_id:
                    answer.on_event(message)
                    self.runs_finished += 1
                    self._end_answer(None)
            case Failed(request_id=request_id, code=code, message=text, param=param):
                if answer is not None and answer.request_id == request_id:
                    error = error_of(code, text, param)
                    self._end_answer(error)
                    if code == "backend_crashed":
                        self._lost(error)
                elif (count := self._counts.get(request_id)) is not None and not count.done():
                    count.set_exception(error_of(code, text, param))
            case Counted(request_id=request_id, tokens=tokens):
                if (count := self._counts.get(request_id)) is not None and not count.done():
                    count.set_result(tokens)

    def _lost(self, error: ApiError) -> None:
        logger.error("%s: %s", self._spec.model_id, error.message)
        self.ending = True
        self.failure = error
        self._vigil.must_end("did not exit after its engine was lost")

    def _warned(self, text: str) -> None:
        logger.warning("%s: %s", self._spec.model_id, text)
        if self.info is not None and text not in self.info.warnings:
            self.info = msgspec.structs.replace(self.info, warnings=[*self.info.warnings, text])

    # the end

    def _hangs(self, what: str) -> None:
        error = BackendTimeout(self._death(f"{what} and was ended"))
        logger.error("%s", error.message)
        self.kill(error)

    def _exited(self) -> None:
        returncode = self._process.exited.result()
        self._vigil.stop()
        expected = self._killed or (self.ending and returncode == 0)
        level = logging.INFO if expected else logging.ERROR
        logger.log(
            level, "the worker of %s, pid %d, %s", self._spec.model_id, self.pid, describe_exit(returncode)
        )
        self.ending = True
        self._check_gone()

    def _check_gone(self) -> None:
        # Both: what a worker sent before it ended is read before its end is reported.
        if self._socket_open or not self._process.exited.done() or self.gone.done():
            return
        self._settle(None)
        self.gone.set_result(None)

    def _settle(self, error: ApiError | None) -> None:
        """Tell everyone who waits that the worker ends, with `error` or with how its process ended."""
        self._vigil.stop()
        if error is None and not self._loaded.done():
            error = errors.LoadFailed(self._death(f"{self._exit()} while it loaded the model"))
        elif error is None:
            error = BackendCrashed(self._death(self._exit()))
        if not self._loaded.done():
            self._loaded.set_exception(error)
            self._loaded.exception()  # whoever started the load may have stopped waiting for it
        if not (self._killed or self._unloading):
            self.failure = self.failure or error
        self._end_answer(error)
        for count in self._counts.values():
            if not count.done():
                count.set_exception(error)

    def _end_answer(self, error: ApiError | None) -> None:
        answer, self._answer = self._answer, None
        self._vigil.run_ends()
        if answer is None:
            return
        if answer.cancelled:
            self._vigil.ended()
        if error is None:
            answer.done.set_result(None)
        else:
            answer.done.set_exception(error)

    def _exit(self) -> str:
        return describe_exit(self._process.exited.result())

    def _death(self, what: str) -> str:
        text = f"The worker of {self._spec.model_id} {what}; the next request starts a new one."
        return with_output(text, self._process.output.tail())

    def _write(self, message: ToWorker) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))
