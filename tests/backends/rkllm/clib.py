"""Small shared libraries, compiled in the test that needs their symbols or their headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serving import PATIENCE

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
    subprocess.run(command, input=source.encode(), check=True, timeout=60 * PATIENCE)
    return path


SCRIPTED = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
const char version[] = "RKLLM SDK (version: 1.3.1 (test@2025-01-01T00:00:00))";
typedef struct { int32_t top_k; float top_p, temperature, repeat_penalty, frequency_penalty, presence_penalty;
  int32_t mirostat; float mirostat_tau, mirostat_eta; } Sampling;
typedef struct { int mode; void *lora, *cache; Sampling *sampling; int keep_history;
  int32_t max_new_tokens; } Infer;
typedef struct { const char *role; bool enable_thinking; int input_type;
  union { const char *prompt; struct { int32_t *ids; size_t n; } tokens; char room[144]; } in; } Input;
typedef struct { float prefill_ms; int prefill_tokens; float generate_ms; int generate_tokens;
  float mb; } Perf;
typedef struct { const char *text; int32_t token_id; void *hidden[2], *logits[2]; Perf perf; } Result;
typedef int (*OnResult)(Result *, void *, int);
typedef struct { OnResult on_result; void *userdata; void *rest[4]; } Callback;
typedef struct { int what, number; const char *text; } Step;
enum { PRINT = 100, WAIT_FOR_ABORT, RETURN, NULL_RESULT, WAIT_FOR_ABORT_CALL };

Param init_param; char init_path[4096]; Infer infer; Sampling sampling; Input input; int32_t ids[4096];
char prompt[65536], chat_template[64]; int init_status, null_handle, template_status, kv_size = -1;
volatile int aborts;
int inits, runs, destroys, clears, deaf_aborts; char init_log[4096]; Perf perf; Step steps[4096]; int n_steps;
static OnResult on_result; static volatile int aborted; static int token;

int rkllm_init(void **h, Param *p, Callback *c) {
  inits++; init_param = *p; snprintf(init_path, sizeof init_path, "%s", p->model_path);
  on_result = c->on_result; fputs(init_log, stdout);
  *h = null_handle ? NULL : &token; return init_status; }
int rkllm_destroy(void *h) { destroys++; return 0; }
int rkllm_abort(void *h) { aborted = aborts >= deaf_aborts; aborts++; return 0; }
int rkllm_set_chat_template(void *h, const char *a, const char *b, const char *c) {
  snprintf(chat_template, sizeof chat_template, "[%s][%s][%s]", a, b, c); return template_status; }
int rkllm_clear_kv_cache(void *h, int keep, int *a, int *b) { clears++; return keep || a || b ? -1 : 0; }
int rkllm_get_kv_cache_size(void *h, int *n) { if (kv_size < 0) return -1; *n = kv_size; return 0; }
int rkllm_run(void *h, Input *i, Infer *p, void *userdata) {
  runs++; aborted = 0; input = *i; infer = *p; sampling = *p->sampling;
  if (i->input_type == 0) snprintf(prompt, sizeof prompt, "%s", i->in.prompt);
  else memcpy(ids, i->in.tokens.ids, 4 * i->in.tokens.n);
  int made = 0, status = 0;
  for (int n = 0; n < n_steps && !aborted; n++) {
    Step *s = &steps[n]; char buffer[256]; Result r; memset(&r, 0, sizeof r);
    if (s->what == PRINT) { puts(s->text); continue; }
    if (s->what == WAIT_FOR_ABORT) { while (!aborted) usleep(1000); continue; }
    if (s->what == WAIT_FOR_ABORT_CALL) { while (!aborts) usleep(1000); continue; }
    if (s->what == RETURN) { status = s->number; continue; }
    if (s->what == NULL_RESULT) { on_result(NULL, userdata, s->number); continue; }
    if (s->text) { snprintf(buffer, sizeof buffer, "%s", s->text); r.text = buffer; }
    r.token_id = s->number;
    if (s->what == 2) r.perf = perf; else if (made++ == p->max_new_tokens) break;
    on_result(&r, userdata, s->what);
    memset(buffer, '#', sizeof buffer); }
  return status; }
"""
