"""Small shared libraries, compiled in the test that needs their symbols or their headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PARAM = """
#include <stdint.h>
#include <stdbool.h>
#include <string.h>
typedef struct { int32_t base_domain_id; int8_t embed_flash, enabled_cpus_num; uint32_t enabled_cpus_mask;
  uint8_t n_batch; int8_t use_cross_attn; uint8_t reserved[104]; } Extend;
typedef struct { const char *model_path; int32_t max_context_len, max_new_tokens, top_k, n_keep;
  float top_p, temperature, repeat_penalty, frequency_penalty, presence_penalty; int32_t mirostat;
  float mirostat_tau, mirostat_eta; bool skip_special_token, ignore_eos_token, is_async;
  Extend extend; } Param;
"""
DEFAULTS = """
Param rkllm_createDefaultParam(void) { Param p; memset(&p, 0, sizeof p); p.max_context_len = 4096;
  p.max_new_tokens = 512; p.top_k = 40; p.n_keep = -1; p.top_p = 0.9f; p.temperature = 0.8f;
  p.repeat_penalty = 1.1f; p.mirostat_tau = 5.0f; p.mirostat_eta = 0.1f; p.extend.n_batch = 1;
  p.extend.embed_flash = 1; return p; }
"""
FUNCTIONS = """
int rkllm_init(void **h, Param *p, void *c) { return -1; }
int rkllm_destroy(void *h) { return 0; }
int rkllm_run(void *h, void *i, void *p, void *u) { return -1; }
int rkllm_abort(void *h) { return 0; }
int rkllm_set_chat_template(void *h, const char *a, const char *b, const char *c) { return 0; }
"""


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("no C compiler")
    return found


def compile_library(path: Path, source: str, *flags: str) -> Path:
    """Compile C source into a shared library at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler(), "-shared", "-fPIC", "-O1", "-x", "c", "-", "-x", "none", "-o", str(path), *flags]
    subprocess.run(command, input=source.encode(), check=True, timeout=60)
    return path
