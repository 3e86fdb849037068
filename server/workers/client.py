"""The conversation with one worker: load, answers, counts, unload; watched, and ended when it hangs.

The only place that knows both the messages and the process. Knows no queue and no other worker. Everything
happens in the event loop's thread; what arrives is passed on in the same callback that read it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Self, cast

import msgspec

from backends.base import EmbedParams, GenerateParams, Span
from backends.protocol import (
    Begun,
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
from backends.spec import ModelInfo, ModelSpec
from server import errors
from server.errors import ApiError, BackendCrashed, BackendTimeout
from server.workers.ending import Ending
from server.workers.failure import RunNotBegun, error_of, load_error_of
from server.workers.hang_detector import HangDetector
from server.workers.pending import Pending, RunEvent
from server.workers.process import WorkerProcess
from server.workers.stopped_load import note_stopped_load
from server.workers.timeouts import Timeouts, most_tokens

__all__ = ["RunEvent", "WorkerClient"]

logger = logging.getLogger(__name__)


class WorkerClient(asyncio.Protocol):
    """A live worker. Make one with `start`.

    info: what the loaded model reports, None before. gone: set once its process is reaped and its socket read
    to the end; never an exception. lost_to_adapter: the adapter over whose loading it was lost, if it was.
    """

    def __init__(
        self,
        process: WorkerProcess,
        spec: ModelSpec,
        timeouts: Timeouts,
        on_loading: Callable[[Loading], None],
    ) -> None:
        self.info: ModelInfo | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.runs_finished = 0
        self.lost_to_adapter: str | None = None
        self._process = process
        self._spec = spec
        self._heartbeat_s = timeouts.heartbeat_s
        self._on_loading = on_loading
        self._decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)
        self._transport: asyncio.WriteTransport | None = None
        self._socket_open = True
        self._pending = Pending()
        self._ending = Ending(process, spec.model_id)
        self._hang = HangDetector(timeouts, self._hangs)
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
            client.kill(
                errors.LoadFailed(f"The worker of {spec.model_id} cannot be spoken to."),
                "it cannot be spoken to",
            )
            raise
        return client

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return self._pending.run is not None

    @property
    def ending(self) -> bool:
        """Whether it will run nothing more: it is being unloaded, killed, or dead."""
        return self._ending.begun

    @property
    def failure(self) -> ApiError | None:
        """Why it ended, None unless something went wrong."""
        return self._ending.failure

    async def loaded(self) -> ModelInfo:
        """Wait until the model is loaded. Raises LoadError, or BackendTimeout if the load hangs."""
        return await asyncio.shield(self._pending.load)

    async def generate(
        self, params: GenerateParams | EmbedParams, on_event: Callable[[RunEvent], None]
    ) -> None:
        """Make one answer, or one request's vectors; events go to `on_event`, the last of them Finished.

        One at a time. Returns when the worker is free again. Raises the ApiError that the run failed with,
        RunNotBegun where the worker ended before it began; after `cancel` it returns or raises all the same.
        Not to be cancelled as a task: use `cancel`.
        """
        if self.ending:
            raise RunNotBegun(
                self.failure
                or BackendCrashed(
                    f"The worker of {self._spec.model_id} has just ended. Send the request again."
                )
            )
        request_id = self._pending.next_id()
        if isinstance(params, EmbedParams):
            self._ask(Embed(request_id, params))
        else:
            self._ask(Generate(request_id, params))
        adapter = None if isinstance(params, EmbedParams) else params.adapter
        run = self._pending.new_run(request_id, on_event, None if adapter is None else adapter.name)
        self._process.output.forget()
        self._hang.run_begins(most_tokens(params, self._spec.context_length))
        await run.done

    def cancel(self) -> None:
        """End the run under way, if there is one, at its next token; a worker that will not is killed."""
        run = self._pending.run
        if run is None or run.cancelled or self.ending:
            return
        run.cancelled = True
        self._write(Cancel(run.request_id))
        self._hang.run_ends()
        self._hang.must_end("did not stop an answer in time")

    async def count(self, prompt: list[Span]) -> int:
        """Return a prompt's length in tokens; works while a run goes on. Raises ApiError."""
        if self.ending or self.info is None:
            raise BackendCrashed(f"The worker of {self._spec.model_id} is not there. Send the request again.")
        request_id = self._pending.next_id()
        self._ask(Count(request_id, prompt))
        try:
            return await self._pending.new_count(request_id)
        finally:
            self._pending.forget_count(request_id)

    def unload(self) -> None:
        """Let an idle worker close its model and exit; one that does not is killed."""
        if self.ending:
            return
        self._ending.unload()
        self._write(Unload())
        self._hang.must_end("did not unload its model in time")

    def kill(self, error: ApiError, why: str | None = None) -> None:
        """End the worker now; whoever waits for it gets `error`. `why` goes into the log, else the error."""
        self._ending.kill(error, why or error.message)
        self._settle(error)

    def stop(self, error: ApiError, why: str) -> None:
        """Do what `kill` does, because the server is to stop: no load that this ends has failed."""
        if self.info is None and not self.ending:
            note_stopped_load(self._spec)
        self.kill(error, why)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses of asyncio's
        try:
            self._write(Load(self._spec, self._heartbeat_s))
        except ProtocolError as error:
            self.kill(
                errors.LoadFailed(
                    f"{self._spec.model_id} cannot be loaded: {error}. Correct its entry in models.yaml, or "
                    "the name of its folder."
                ),
                "it cannot be told what to load",
            )

    def data_received(self, data: bytes) -> None:
        if self._ending.killed:
            return
        self._hang.heard()
        decoded = False
        try:
            for message in self._decoder.feed(data):
                if type(message) is Delta:  # once a token: the way the throughput depends on
                    if (run := self._pending.run_of(message.request_id)) is not None:
                        run.on_event(message)
                        decoded = True
                else:
                    self._take(message)
        except ProtocolError as error:
            self.kill(
                BackendCrashed(f"The worker of {self._spec.model_id} sent nonsense ({error})."),
                "it sent nonsense",
            )
        if decoded and (run := self._pending.run) is not None and not run.cancelled:
            self._hang.decoded()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._socket_open = False
        self._ending.begun = True
        self._hang.stop()
        if not self._process.exited.done():
            # Nothing more can be said to it, and it ends by itself when its socket has.
            self._hang.must_end("closed its connection, did not exit")
        self._check_gone()

    def _take(self, message: FromWorker) -> None:
        match message:
            case Heartbeat():
                pass
            case Loading():
                self._on_loading(message)
            case Ready(info=info):
                self._hang.loaded()
                self.info = info
                self._pending.end_load(info)
            case LoadFailed(code=code, message=text):
                error = load_error_of(code, text)
                self._ending.fail(error)
                self._settle(error)
                self._hang.must_end("did not exit after its load had failed")
            case Begun(request_id=request_id):
                if (run := self._pending.run_of(request_id)) is not None:
                    run.begun = True
            case Prefill(request_id=request_id, done=done, total=total):
                if (run := self._pending.run_of(request_id)) is not None:
                    run.prefilling = True
                    if not run.cancelled:
                        run.on_event(message)
                        self._hang.prefill(total - done)
            case Warned(message=text):
                self._warned(text)
            case Finished(request_id=request_id):
                if (run := self._pending.run_of(request_id)) is not None:
                    run.on_event(message)
                    self.runs_finished += 1
                    self._end_run(None)
            case Failed(request_id=request_id, code=code, message=text, param=param):
                error = error_of(code, text, param)
                if self._pending.run_of(request_id) is None:
                    self._pending.end_count(request_id, 0, error)
                    return
                if code == "backend_crashed":
                    self._blame_adapter()
                self._end_run(error)
                if code == "backend_crashed":
                    self._lost(error)
            case Counted(request_id=request_id, tokens=tokens):
                self._pending.end_count(request_id, tokens)

    def _lost(self, error: ApiError) -> None:
        logger.error("%s: %s", self._spec.model_id, error.message)
        self._ending.fail(error)
        self._hang.must_end("did not exit after its engine was lost")

    def _warned(self, text: str) -> None:
        logger.warning("%s: %s", self._spec.model_id, text)
        if self.info is not None and text not in self.info.warnings:
            self.info = msgspec.structs.replace(self.info, warnings=[*self.info.warnings, text])

    def _end_run(self, error: ApiError | None) -> None:
        self._hang.run_ends()
        run = self._pending.end_run(error)
        if run is not None and run.cancelled:
            self._hang.ended()

    # the end

    def _blame_adapter(self) -> str:
        """Note whether it is lost over an adapter, before its run is forgotten; return that in words."""
        run = self._pending.run
        self.lost_to_adapter = self.lost_to_adapter or (None if run is None else run.adapting)
        return "" if self.lost_to_adapter is None else f" while it loaded the adapter {self.lost_to_adapter}"

    def _hangs(self, what: str) -> None:
        how = f"{what} and was ended{self._blame_adapter()}"
        error = BackendTimeout(self._ending.death(how), reason=self._ending.reason(how))
        logger.error("%s", error.message)
        self.kill(error, f"it {what}")

    def _exited(self) -> None:
        self._hang.stop()
        self._ending.log_exit()
        self._ending.begun = True
        self._check_gone()

    def _check_gone(self) -> None:
        # Both: what a worker sent before it ended is read before its end is reported.
        if self._socket_open or not self._process.exited.done() or self.gone.done():
            return
        during = self._blame_adapter()
        error = self.failure or self._ending.exit_error(loading=not self._pending.load.done(), during=during)
        self._ending.fail(error)
        self._settle(error)
        self.gone.set_result(None)

    def _settle(self, error: ApiError) -> None:
        """Tell everyone who waits that the worker ends with `error`."""
        self._hang.stop()
        self._pending.fail(error)

    def _ask(self, message: Generate | Embed | Count) -> None:
        """Send what came from a client. Raises InvalidRequest if it cannot be sent; the worker goes on."""
        try:
            self._write(message)
        except ProtocolError as error:
            raise errors.InvalidRequest(f"The request cannot be passed on: {error}.") from error

    def _write(self, message: ToWorker) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))
