"""What each key of an entry refuses, in which line and words, and what of a file as a whole."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from server.registry import RegistryError
from server.registry.load import read_registry
from tests.server.registry.written import HYBRID, RKLLM, block, problems, read


def test_what_is_required_is_enough(tmp_path: Path) -> None:
    entry = read(HYBRID, tmp_path).entries["m"]
    assert entry.max_tokens == 1024
    assert entry.capabilities == ("chat",)
    assert (entry.thinking, entry.tools, entry.vision, entry.embeddings) == (None, None, None, None)
    assert (entry.hybrid.cache_mb, entry.hybrid.kv_dtype, entry.hybrid.executor) == (512, "fp32", "auto")
    assert (entry.rkllm.cpus, entry.rkllm.n_keep, entry.rkllm.embed_flash) == ((4, 5, 6, 7), -1, True)
    assert (entry.overflow, entry.runtime_check, entry.license.accept) == ("error", "strict", False)


def test_an_answer_is_no_longer_than_the_context(tmp_path: Path) -> None:
    assert read(HYBRID.replace("4096", "512"), tmp_path).entries["m"].max_tokens == 512


def test_every_key_of_the_schema_is_taken(tmp_path: Path) -> None:
    text = """\
    version: 1
    models:
      base:
        aliases: [base-model, "org/base:3b"]
        backend: rkllm
        source: {url: "https://example.org/base.rkllm"}
        file: /models/base.rkllm
        sha256: B179C9523D0E6A0F98A330C7562B682750A6F8C8C15E5BC70EA373728110DB53
        runtime: ">=1.3.1,<1.4"
        runtime_check: warn
        template: own.jinja
        template_options: {bos: "<s>", default_system: Be kind.}
        tokenizer: {repo: org/base, revision: abc123}
        eos: ["<|im_end|>", 2]
        stop: ["\\n\\nUser:"]
        thinking: {default: "off", switch: enable_thinking, open: "<t>", close: "</t>"}
        tools: {format: hermes}
        context_length: 4096
        max_tokens: 512
        memory_mb: 2500
        capabilities: [chat, vision, tools, thinking, embeddings]
        sampling: {temperature: 0, top_p: 0.9, top_k: 40, repeat_penalty: 1.05, presence_penalty: -1,
                   frequency_penalty: 0.5}
        overflow: truncate_oldest
        side_model: small
        rkllm: {base_domain_id: 1, cpus: [4], embed_flash: false, n_keep: 3, skip_special_token: true,
                prompt_cache: true, structured: off}
        vision: {file: v.rknn, runtime: ">=2.3", size: [392, 448], layout: nchw, dtype: float32,
                 mean: [1, 2, 3], std: [1, 1, 1], resize: stretch,
                 marks: {image: i, start: s, end: e, content: c}}
        embeddings: {pooling: mean, normalize: false, instruction: "Instruct:", append: "<e>",
                     matryoshka: true}
        license: {id: MIT, url: "https://example.org/l", notice: n, attribution: a, accept: true}
        measured: {score: 6, tokens_per_s: 10.9, memory_gb: 2.5, remark: good}
      adapted:
        backend: rkllm
        template: chatml
        context_length: 4096
        memory_mb: 2500
        license: {id: MIT}
        rkllm: {structured: best_effort, lora: {base: base, file: lora.rkllm, scale: 0.5}}
      small:
        backend: hybrid
        folder: some/folder
        tokenizer: tok/tokenizer.json
        template: model
        context_length: 4096
        memory_mb: 2500
        license: {id: MIT}
        sampling: {min_p: 0.15}
        hybrid: {executor: rknn, core_mask: "0_1", threads: 2, kv_dtype: fp16, cache_mb: 0, variant: int4,
                 meta: over.json}
    """
    entries = read(textwrap.dedent(text), tmp_path).entries
    base, adapted, small = entries["base"], entries["adapted"], entries["small"]
    assert base.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert base.eos == ("<|im_end|>", 2)
    assert base.thinking is not None and base.thinking.default is False
    assert base.rkllm.structured == "off" and adapted.rkllm.structured == "best_effort"
    assert base.vision is not None and base.vision.size == (392, 448)
    assert base.vision.marks.content == "c"
    assert adapted.rkllm.lora is not None and adapted.rkllm.lora.scale == 0.5
    assert small.tokenizer == "tok/tokenizer.json" and small.hybrid.core_mask == "0_1"
    assert small.sampling.min_p == 0.15 and small.sampling.temperature == 1


@pytest.mark.parametrize(("word", "value"), [("off", False), ('"off"', False), ("on", True), ('"on"', True)])
def test_on_and_off_count_with_and_without_quotes(word: str, value: bool, tmp_path: Path) -> None:
    entry = read(HYBRID + f"    thinking: {{default: {word}}}\n", tmp_path).entries["m"]
    assert entry.thinking is not None and entry.thinking.default is value


BAD = [
    # unknown keys, and the nearest known
    ("temprature: 1", 10, 'temprature: unknown key; did you mean "sampling.temperature"?'),
    ("alias: [x]", 10, 'alias: unknown key; did you mean "aliases"?'),
    ("zzzz: 1", 10, "zzzz: unknown key; known are aliases, backend, source, file, "),
    ("id: other", 10, "id: unknown key; the id is the key above"),
    ("sampling:\n  top_kk: 1", 11, 'sampling.top_kk: unknown key; did you mean "top_k"?'),
    ("hybrid: {cache: 1}", 10, 'hybrid.cache: unknown key; did you mean "cache_mb"?'),
    ("thinking: {default: on, swich: x}", 10, 'thinking.swich: unknown key; did you mean "switch"?'),
    ("source: {repo: a/b, revison: x}", 10, 'source.revison: unknown key; did you mean "revision"?'),
    ("measured: {tokens_per_second: 1}", 10, 'measured.tokens_per_second: unknown key; did you mean "tok'),
    ("template_options: {boss: x}", 10, 'template_options.boss: unknown key; did you mean "bos"?'),
    # values of the wrong kind
    ("aliases: x", 10, 'aliases: must be a list, not "x"'),
    ("aliases: [1]", 10, "aliases[0]: must be text, and 1 is not; write it in quotes"),
    ("aliases: ['a b']", 10, 'aliases[0]: "a b": must be a name: letters, digits, '),
    ("source: {revision: main}", 10, "source: must be a block with repo, package or url, not "),
    ("source: here", 10, "source: must be a block with repo, package or url, not "),
    ("source: 3", 10, "source: must be a block with repo, package or url, not "),
    ("source: {repo: nobody}", 10, 'source.repo: "nobody": must be owner/name'),
    ("source: {repo: ../../x}", 10, 'source.repo: "../../x": must be owner/name'),
    ("source: {repo: a/b, revision: 1234567}", 10, "source.revision: must be text, and 1234567 is not"),
    ("source: {package: p, file: f}", 10, "source.version: required, and missing"),
    ('source: {package: p, version: "1", file: ../f}', 10, 'source.file: "../f": must stay in the model'),
    ("source: {url: 'ftp://x/y'}", 10, 'source.url: "ftp://x/y": must be a http or https address'),
    ("folder: ../other", 10, "folder: stands here a second time, after line 5"),
    ("sha256: abc", 10, 'sha256: "abc": must be 64 hexadecimal digits'),
    ("runtime: 1.3", 10, "runtime: must be text, and 1.3 is not; write it in quotes"),
    ("runtime: new", 10, 'runtime: "new": must be a version specifier such as "==1.3.1" or '),
    ("runtime_check: maybe", 10, "runtime_check: must be 'strict' or 'warn', not \"maybe\""),
    ("tokenizer: ../x", 10, 'tokenizer: "../x": must stay in the model'),
    ("tokenizer: {url: x}", 10, "tokenizer: must be a block with repo, or a path, not a block of keys"),
    ("eos: [yes]", 10, "eos[0]: true: must be the token's text in quotes, or its id"),
    ("eos: [x, -1]", 10, "eos[1]: -1: must be an id from 0 to 2147483647"),
    ("eos: [18446744073709551616]", 10, "eos[0]: 18446744073709551616: must be an id from 0 to 2147483647"),
    ('eos: ["\\ud800"]', 10, "eos[0]: "),
    ('stop: ["\\ud800"]', 10, "stop[0]: "),
    ("eos: ['']", 10, 'eos[0]: "": must be the token\'s text in quotes, or its id'),
    ("stop:\n- ok\n- ''", 12, "stop[1]: must not be empty"),
    ("thinking: on", 10, "thinking: must be a block of keys, not true"),
    ("thinking: {open: <t>}", 10, "thinking.default: required, and missing"),
    ("thinking: {default: maybe}", 10, 'thinking.default: must be true or false, not "maybe"'),
    ("tools: hermes", 10, 'tools: must be a block of keys, not "hermes"'),
    ("tools: {format: xml}", 10, "tools.format: must be 'hermes', 'function_xml', 'param_xml', 'lfm', "),
    ("max_tokens: 0", 10, "max_tokens: must be greater than 0, not 0"),
    ("max_tokens: '5'", 10, 'max_tokens: must be a whole number, not "5"'),
    ("max_tokens: 1.5", 10, "max_tokens: must be a whole number, not 1.5"),
    ("max_tokens: true", 10, "max_tokens: must be a whole number, not true"),
    ("capabilities: []", 10, "capabilities: must not be empty"),
    ("capabilities: [chat, sing]", 10, "capabilities[1]: must be 'chat', 'vision', 'embeddings', "),
    ("sampling: {temperature: -1}", 10, "sampling.temperature: must be 0 or more, not -1"),
    ("sampling: {temperature: .nan}", 10, "sampling.temperature: must be "),
    ("sampling: {top_p: 0}", 10, "sampling.top_p: must be greater than 0, not 0"),
    ("sampling: {top_p: 1.1}", 10, "sampling.top_p: must be 1 or less, not 1.1"),
    ("sampling: {top_k: -1}", 10, "sampling.top_k: must be 0 or more, not -1"),
    ("sampling: {min_p: 2}", 10, "sampling.min_p: must be 1 or less, not 2"),
    ("sampling: {repeat_penalty: 0}", 10, "sampling.repeat_penalty: must be greater than 0, not 0"),
    ("sampling: {presence_penalty: 3}", 10, "sampling.presence_penalty: must be 2 or less, not 3"),
    ("sampling: {frequency_penalty: -3}", 10, "sampling.frequency_penalty: must be -2 or more, not -3"),
    ("overflow: panic", 10, "overflow: must be 'error', 'drop_tools' or 'truncate_oldest', not \"panic\""),
    ("hybrid: {executor: gpu}", 10, "hybrid.executor: must be 'auto', 'onnxruntime', 'rknn' or 'rknnlite'"),
    (
        "hybrid: {core_mask: 3}",
        10,
        "hybrid.core_mask: must be 'auto', '0', '1', '2', '0_1', '0_1_2' or 'all'",
    ),
    ("hybrid: {threads: 0}", 10, "hybrid.threads: must be greater than 0, not 0"),
    ("hybrid: {threads: 1000000000}", 10, "hybrid.threads: must be"),
    ("hybrid: {cache_mb: -1}", 10, "hybrid.cache_mb: must be 0 or more, not -1"),
    ("hybrid: {kv_dtype: int8}", 10, "hybrid.kv_dtype: must be 'fp32' or 'fp16', not \"int8\""),
    ("hybrid: {meta: ../x}", 10, 'hybrid.meta: "../x": must stay in the model'),
    ("measured: {score: 8}", 10, "measured.score: must be 7 or less, not 8"),
    ("measured: {tokens_per_s: 0}", 10, "measured.tokens_per_s: must be greater than 0, not 0"),
    # keys that do not go together
    ("max_tokens: 5000", 10, "max_tokens: 5000 is more than context_length, 4096"),
    ("file: x", 10, "file: backend: hybrid takes folder:, not file:"),
    ("rkllm: {n_keep: 1}", 10, "rkllm: this block has no effect with backend: hybrid; remove it"),
    ("capabilities: [chat, tools]", 10, "capabilities: tools needs the key tools:"),
    ("capabilities: [chat, thinking]", 10, "capabilities: thinking needs the key thinking:"),
    ("capabilities: [vision]", 10, "capabilities: vision needs the block vision:"),
    (
        "capabilities: [chat, vision]\nvision: {file: v.rknn, size: [1, 1]}",
        11,
        "vision: only models with backend: rkllm take images",
    ),
    ("capabilities: [embeddings]", 10, "capabilities: embeddings needs the block embeddings:"),
    ("capabilities: [chat, chat]", 10, "capabilities: one stands there twice"),
    (
        "embeddings: {pooling: last}\ncapabilities: [embeddings]",
        10,
        "embeddings: the hybrid engine makes none",
    ),
    ("embeddings: {pooling: last}", 10, "embeddings: this block needs embeddings in capabilities"),
    ("vision: {file: v.rknn, size: [1, 1]}", 10, "vision: this block needs vision in capabilities"),
    # other entries
    ("side_model: nobody", 10, 'side_model: no entry "nobody"'),
    ("aliases: [m]", 10, 'aliases[0]: "m" is already an id'),
    ("aliases: [x, x]", 10, 'aliases[1]: "x" is already an alias of m'),
]
BAD_RKLLM = [
    ("folder: .", 10, "folder: backend: rkllm takes file:, not folder:"),
    ("hybrid: {threads: 1}", 10, "hybrid: this block has no effect with backend: rkllm; remove it"),
    ("runtime: '==1.2.3'", 10, 'runtime: "==1.2.3" allows no version we can drive, which are <1.4,>=1.3'),
    ("runtime: '>=1.4'", 10, 'runtime: ">=1.4" allows no version we can drive, which are <1.4,>=1.3'),
    ("runtime: '>1.3.0,<1.3.1'", 10, 'runtime: ">1.3.0,<1.3.1" allows no version we can drive, '),
    ("sampling: {min_p: 0.1}", 10, "sampling.min_p: librkllmrt has no min_p; remove it"),
    ("rkllm: {cpus: [4, 8]}", 10, "rkllm.cpus[1]: must be 7 or less, not 8"),
    ("rkllm: {cpus: []}", 10, "rkllm.cpus: must not be empty"),
    ("rkllm: {n_keep: -2}", 10, "rkllm.n_keep: must be -1 or more, not -2"),
    ("rkllm: {base_domain_id: -1}", 10, "rkllm.base_domain_id: must be 0 or more, not -1"),
    ("rkllm: {embed_flash: 1}", 10, "rkllm.embed_flash: must be true or false, not 1"),
    ("rkllm: {structured: strict}", 10, "rkllm.structured: must be 'off' or 'best_effort', not \"strict\""),
    ("rkllm: {lora: {base: m, file: l}}", 10, "rkllm.lora.base: an adapter cannot be its own base"),
    ("rkllm: {lora: {base: n, file: l}}", 10, 'rkllm.lora.base: no entry "n"'),
    ("rkllm: {lora: {base: m, file: ../l}}", 10, 'rkllm.lora.file: "../l": must stay in the model'),
    (
        "capabilities: [chat, vision]\nvision: {file: v.rknn, size: [1, 1], mean: [1, 2, 3]}",
        11,
        "vision.dtype: uint8 takes pixels as they are",
    ),
    (
        "capabilities: [chat, vision]\nvision: {file: v.bin, size: [1, 1]}",
        11,
        "vision.file: must be a .rknn or .onnx file",
    ),
    ("vision: {file: v, size: [1]}", 10, "vision.size[1]: required, and missing"),
    ("vision: {file: v, size: [0, 1]}", 10, "vision.size[0]: must be greater than 0, not 0"),
    ("vision: {file: v, size: [1, 1], std: [0, 1, 1]}", 10, "vision.std[0]: must be greater than 0, not 0"),
    ("vision: {file: v, size: [1, 1], resize: crop}", 10, "vision.resize: must be 'square_pad' or 'stretch'"),
    (
        "vision: {file: v, size: [1, 1], marks: {imag: x}}",
        10,
        'vision.marks.imag: unknown key; did you mean "',
    ),
]


@pytest.mark.parametrize(
    ("entry", "line", "message", "base"),
    [(*case, HYBRID) for case in BAD] + [(*case, RKLLM) for case in BAD_RKLLM],
)
def test_bad_keys_and_values(entry: str, line: int, message: str, base: str, tmp_path: Path) -> None:
    (found,) = problems(base + block(entry) + "\n", tmp_path)
    assert found.startswith(f"{line}: models.m.{message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    backend: hybrid\n", "", "3: models.m.backend: required, and missing"),
        ("    folder: .\n", "", "3: models.m.folder: required with backend: hybrid"),
        ("    template: chatml\n", "", "3: models.m.template: required, and missing"),
        ("    context_length: 4096\n", "", "3: models.m.context_length: required, and missing"),
        ("    memory_mb: 100\n", "", "3: models.m.memory_mb: required, and missing"),
        ("    license: {id: MIT}\n", "", "3: models.m.license: required, and missing"),
        ("{id: MIT}", "{url: 'https://x/y'}", "8: models.m.license.id: required, and missing"),
        ("{id: MIT}", "{id: ''}", "8: models.m.license.id: must not be empty"),
        ("{id: MIT}", "{id: MIT, url: x}", '8: models.m.license.url: "x": must be a http or https'),
        ("{id: MIT}", "{id: MIT, accept: 1}", "8: models.m.license.accept: must be true or false, not 1"),
        ("{id: MIT}", "MIT", '8: models.m.license: must be a block of keys, not "MIT"'),
        ("hybrid", "cuda", "4: models.m.backend: must be 'rkllm' or 'hybrid', not \"cuda\""),
        ("folder: .", "folder: a/../../x", '5: models.m.folder: "a/../../x": must stay in the model'),
        ("folder: .", "folder: ''", '5: models.m.folder: "": must be a path'),
        ("4096", "0", "7: models.m.context_length: must be greater than 0, not 0"),
        ("100", "-1", "9: models.m.memory_mb: must be greater than 0, not -1"),
        ("100", "lots", '9: models.m.memory_mb: must be a whole number, not "lots"'),
        (
            "chatml",
            "chatmll",
            '6: models.m.template: "chatmll": must be "model", a path to a .jinja file, or ',
        ),
        ("chatml", "../t.jinja", '6: models.m.template: "../t.jinja": must stay in the model'),
        ("  m:", "  a/b:", "3: models.a/b: must be an id: letters, digits, "),
        ("  m:", "  ..:", "3: models...: must be an id: letters, digits, "),
        ("  m:", "  .hidden:", "3: models..hidden: must be an id: letters, digits, "),
        ("version: 1", "version: 2", "1: version: must be 1, and it is 2"),
        ("version: 1", "version: '1'", "1: version: must be 1, and it is '1'"),
        ("version: 1", "version: true", "1: version: must be 1, and it is True"),
        ("version: 1\n", "", "1: version: must be 1, and it is missing"),
    ],
)
def test_bad_required_keys(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in HYBRID
    (found,) = problems(HYBRID.replace(old, new), tmp_path)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("template:", "tamplate:", '6: models.m.tamplate: unknown key; did you mean "template"?'),
        ("memory_mb:", "memory_md:", '9: models.m.memory_md: unknown key; did you mean "memory_mb"?'),
        ("{id: MIT}", "{ids: MIT}", '8: models.m.license.ids: unknown key; did you mean "id"?'),
        ("version:", "verison:", '1: verison: unknown key; did you mean "version"?'),
        ("models:", "modles:", '2: modles: unknown key; did you mean "models"?'),
    ],
)
def test_a_misspelt_required_key_is_one_problem(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert HYBRID.count(old) == 1
    assert problems(HYBRID.replace(old, new), tmp_path) == [message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty"),
        ("[]", "1: must begin with version: 1 and models:"),
        ("hello", "1: must begin with version: 1 and models:"),
        ("version: 1\n", "1: models: must be a block of entries by id"),
        ("version: 1\nmodels: [m]\n", "2: models: must be a block of entries by id"),
        ("version: 1\nmodels:\n  m:\n", "3: models.m: must be a block of keys"),
        ("version: 1\nmodel: {}\nmodels: {}\n", '2: model: unknown key; did you mean "models"?'),
        ("version: 1\nmodels:\n\tm: 1\n", "3: not YAML: there is a tab; indent with spaces"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    assert problems(text, tmp_path) == [message]


def test_a_file_whose_entries_are_all_comments_is_fine(tmp_path: Path) -> None:
    assert read("version: 1\nmodels:\n#  m: {}\n", tmp_path).entries == {}


def test_a_template_close_to_a_built_in_one_is_named(tmp_path: Path) -> None:
    (found,) = problems(HYBRID.replace("chatml", "chatm"), tmp_path)
    assert found.endswith('; did you mean "chatml"?')


def test_a_file_that_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="cannot be read: No such file or directory"):
        read_registry([tmp_path / "none.yaml"], tmp_path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(RegistryError, match=r"pipe\.yaml:1: is no file but a pipe"):
        read_registry([tmp_path / "pipe.yaml"], tmp_path)


def test_problems_come_all_at_once_by_line_and_carry_their_fields(tmp_path: Path) -> None:
    text = HYBRID + "    temprature: 1\n    max_tokens: x\n  n:\n    backend: rkllm\n"
    with pytest.raises(RegistryError) as caught:
        read(text, tmp_path)
    error = caught.value
    assert (error.file, error.line, error.key) == (tmp_path / "models.yaml", 10, "models.m.temprature")
    assert error.nearest == "sampling.temperature"
    assert [problem.line for problem in error.problems] == [10, 11, 12, 12, 12, 12]
    assert [problem.key for problem in error.problems[2:]] == [
        f"models.n.{key}" for key in ("context_length", "license", "memory_mb", "template")
    ]


def test_several_contradictions_of_one_entry_are_told_at_once(tmp_path: Path) -> None:
    found = problems(HYBRID + "    file: x\n    max_tokens: 9999\n", tmp_path)
    assert [line.split(":")[0] for line in found] == ["10", "11"]
