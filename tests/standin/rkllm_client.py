"""The least ctypes that can call the stand-in, for its own tests.

Written from the ABI facts and on purpose not the product's bindings: raw bytes at raw offsets instead of
structures, so that a mistake in a structure cannot be made twice alike.
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESULT_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
TOKENIZER_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32
)
EMBED_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64
)
NORMAL, WAITING, FINISH, ERROR = range(4)
PROMPT, TOKEN, EMBED, MULTIMODAL = range(4)
GENERATE, HIDDEN, LOGITS = range(3)


class Param(ctypes.Structure):
    """184 bytes of RKLLMParam, by value."""

    _fields_ = [("raw", ctypes.c_uint8 * 184)]


@dataclass
class Seen:
    """What one callback saw, copied inside it."""

    state: int
    text: bytes | None
    token_id: int
    hidden: tuple[int, int, list[float]] | None = None  # width, rows, values
    logits: tuple[int, int, list[float]] | None = None
    perf: tuple[float, int, float, int, float] = (0, 0, 0, 0, 0)
    text_address: int = 0


@dataclass
class Client:
    """One handle of one library. `on_result` may look at the raw result and give the callback's answer."""

    library: Path
    on_result: Callable[[Seen, int], int] = lambda seen, userdata: 0
    batch: int = 1
    seen: list[Seen] = field(default_factory=list)
    keep: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lib = ctypes.CDLL(str(self.library))
        self.lib.rkllm_createDefaultParam.restype = Param
        self.handle = ctypes.c_void_p()
        self.callback = RESULT_CALLBACK(self._result)

    def _result(self, result: int, userdata: int | None, state: int) -> int:
        answer = 0
        for slot in range(self.batch):
            one = _copy(result + 72 * slot, state)
            self.seen.append(one)
            answer = self.on_result(one, userdata or 0)
        return answer

    def init(
        self,
        model: Path,
        *,
        context: int = 0,
        max_new: int = -1,
        n_keep: int = -1,
        skip_special: bool = False,
        ignore_eos: bool = False,
        domain: int = 0,
        cross: bool = False,
        tokenizer: object = None,
        embed: object = None,
        userdata: int = 0,
    ) -> int:
        param = self.lib.rkllm_createDefaultParam()
        path = str(model).encode()
        self.keep += [path, tokenizer, embed]
        raw = bytearray(param.raw)
        name = ctypes.c_char_p(path)
        self.keep.append(name)
        struct.pack_into("<Q", raw, 0, ctypes.cast(name, ctypes.c_void_p).value or 0)
        struct.pack_into("<iiii", raw, 8, context, max_new, 1, n_keep)
        struct.pack_into("<???", raw, 56, skip_special, ignore_eos, False)
        struct.pack_into("<i", raw, 60, domain)
        struct.pack_into("<Bb", raw, 72, self.batch, cross)
        param.raw[:] = raw
        function = ctypes.cast(self.callback, ctypes.c_void_p).value or 0
        table = struct.pack("<6Q", function, userdata, _address(tokenizer), 0, _address(embed), 0)
        code: int = self.lib.rkllm_init(ctypes.byref(self.handle), ctypes.byref(param), table)
        return code

    def plain_template(self) -> int:
        code: int = self.lib.rkllm_set_chat_template(self.handle, b"", b"", b"")
        return code

    def run(
        self,
        prompt: str | Sequence[int] | bytes | Sequence[str],
        *,
        mode: int = GENERATE,
        keep_history: int = 0,
        max_new: int = 0,
        sampling: Sequence[float] | None = None,
        lora: bytes | None = None,
        cache: tuple[int, bytes] | None = None,
        userdata: int = 0,
        thinking: bool = True,
        asynchronous: bool = False,
        n_rows: int = 0,
    ) -> int:
        """Runs; `seen` is emptied first. Bytes are image_input()'s, or with n_rows that many embeddings."""
        self.seen.clear()
        keep: list[object] = []
        if self.batch > 1:
            assert isinstance(prompt, Sequence)
            inputs = b"".join(self._input(str(one), keep, thinking) for one in prompt)
        else:
            inputs = self._input(prompt, keep, thinking, n_rows)
        infer = bytearray(40)
        struct.pack_into("<i", infer, 0, mode)
        if lora is not None:
            struct.pack_into("<Q", infer, 8, _hold(keep, struct.pack("<Q", _hold(keep, lora + b"\0"))))
        if cache is not None:
            struct.pack_into(
                "<Q", infer, 16, _hold(keep, struct.pack("<i4xQ", cache[0], _hold(keep, cache[1] + b"\0")))
            )
        if sampling is not None:
            top_k, *middle, mirostat, tau, eta = sampling
            packed = struct.pack("<i5fi2f", int(top_k), *middle, int(mirostat), tau, eta)
            struct.pack_into("<Q", infer, 24, _hold(keep, packed))
        struct.pack_into("<ii", infer, 32, keep_history, max_new)
        call = self.lib.rkllm_run_async if asynchronous else self.lib.rkllm_run
        code: int = call(self.handle, inputs, bytes(infer), ctypes.c_void_p(userdata))
        self.keep += keep
        return code

    def _input(self, prompt: object, keep: list[object], thinking: bool, n_rows: int = 0) -> bytes:
        role = _hold(keep, b"user\0")
        if isinstance(prompt, str):
            kind, union = PROMPT, struct.pack("<Q", _hold(keep, prompt.encode() + b"\0"))
        elif isinstance(prompt, bytes) and n_rows:
            kind, union = EMBED, struct.pack("<QQ", _hold(keep, prompt), n_rows)
        elif isinstance(prompt, bytes):
            kind, union = MULTIMODAL, prompt
        else:
            assert isinstance(prompt, Sequence)
            kind = TOKEN
            union = struct.pack("<QQ", _hold(keep, struct.pack(f"<{len(prompt)}i", *prompt)), len(prompt))
        return struct.pack("<Q?3xi", role, thinking, kind) + union.ljust(144, b"\0")

    def image_input(
        self, prompt: str, floats: bytes, tokens: int, count: int, width: int = 8, height: int = 8
    ) -> bytes:
        """The union bytes of a multimodal input."""
        marks = [
            _hold(self.keep, mark + b"\0")
            for mark in (b"<|vision_start|>", b"<|vision_end|>", b"<|image_pad|>")
        ]
        text = _hold(self.keep, prompt.encode() + b"\0")
        image = struct.pack("<8Q", _hold(self.keep, floats), tokens, count, *marks, width, height)
        return struct.pack("<Q", text) + image + bytes(72)

    def cache_sizes(self) -> list[int]:
        sizes = (ctypes.c_int * self.batch)()
        assert self.lib.rkllm_get_kv_cache_size(self.handle, sizes) == 0
        return list(sizes)

    def load_lora(self, path: bytes, name: bytes, scale: float) -> int:
        keep: list[object] = []
        adapter = struct.pack("<QQf4x", _hold(keep, path + b"\0"), _hold(keep, name + b"\0"), scale)
        code: int = self.lib.rkllm_load_lora(self.handle, adapter)
        return code

    def destroy(self) -> int:
        code: int = self.lib.rkllm_destroy(self.handle)
        self.handle = ctypes.c_void_p()
        return code

    def close(self) -> None:
        """Ends what runs and destroys the handle, if that has not been done."""
        if not self.handle.value:
            return
        while self.lib.rkllm_is_running(self.handle) == 1:
            self.lib.rkllm_abort(self.handle)
        self.destroy()

    def flush(self) -> None:
        ctypes.CDLL(None).fflush(None)

    @property
    def text(self) -> bytes:
        """The text of the tokens seen, FINISH and ERROR not counted."""
        return b"".join(one.text or b"" for one in self.seen if one.state in (NORMAL, WAITING))

    @property
    def end(self) -> Seen:
        return self.seen[-1]


def _address(callback: object) -> int:
    return 0 if callback is None else ctypes.cast(callback, ctypes.c_void_p).value or 0  # type: ignore[arg-type]  # a CFUNCTYPE object


def _hold(keep: list[object], data: bytes) -> int:
    buffer = ctypes.create_string_buffer(data, len(data))
    keep.append(buffer)
    return ctypes.addressof(buffer)


def _rows(address: int) -> tuple[int, int, list[float]] | None:
    pointer, width, rows = struct.unpack("<Qii", ctypes.string_at(address, 16))
    if not pointer:
        return None
    return width, rows, list(struct.unpack(f"<{width * rows}f", ctypes.string_at(pointer, width * rows * 4)))


def _copy(result: int, state: int) -> Seen:
    text, token_id = struct.unpack("<Qi", ctypes.string_at(result, 12))
    return Seen(
        state,
        ctypes.string_at(text) if text else None,
        token_id,
        _rows(result + 16),
        _rows(result + 32),
        struct.unpack("<fifif", ctypes.string_at(result + 48, 20)),
        text,
    )
