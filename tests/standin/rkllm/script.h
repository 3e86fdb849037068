// What a model file says: how this model behaves, what it answers and where it breaks. Reading a script that is wrong ends
// the process: it is a mistake of a test, never a case to be tested. README.md has the table of keys.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "abi_common.h"

namespace standin {

enum class FaultKind { Segv, Abort, Hang, HangDeaf, Stop, Exit, Submit, Matmul };
enum class FaultPlace { Load, Prefill, Token, Destroy, Abort, SaveCache, LoadCache };

struct Fault {
  FaultPlace at = FaultPlace::Token;
  FaultKind kind = FaultKind::Segv;
  long token = 0;      // for Token: strikes before the token of this number, the first being 0
  std::string when;    // strikes only for prompts that hold this text
  std::string once;    // strikes only while this file does not exist, and makes it
};

struct Event {
  enum class Kind { Text, Token, Log, Fault };
  Kind kind = Kind::Text;
  std::string bytes;             // Text: to be tokenized; Token: what the callback gets; Log: the line
  bool null_text = false;
  int32_t id = 0;
  std::optional<LLMCallState> state;  // Token: given, or NORMAL (WAITING while a character is incomplete)
  double delay_us = 0;           // waited before it, besides the script's own delay per token
  FaultKind fault = FaultKind::Segv;
};

struct Answer {
  std::string when;              // for prompts that hold this text
  std::vector<int32_t> when_ids; // for prompts that hold these ids in a row
  std::string lora;              // for runs with this adapter
  std::vector<Event> events;
  long repeat = 1;               // how often the events come; negative: for ever
  bool ignore_limits = false;    // goes on beyond max_new_tokens and the model's own EOS
};

struct ChatTemplate {
  std::string system, prefix, postfix;
  std::string no_think;          // added after postfix when enable_thinking is false
};

struct Script {
  // What the init log says.
  std::optional<std::string> runtime;   // a version that differs from the one in the library's bytes
  std::string toolkit;                  // defaults to the library's own version
  std::string platform = "RK3588";
  std::string target_platform = "RK3588";
  std::string driver = "0.9.8";
  std::optional<std::string> dtype = "W8A8";
  int npu_core_num = 3;
  bool log_stderr = false;
  bool log_prefix = true;
  bool log_silent = false;
  std::vector<std::string> log_lines;   // further lines at the end of init

  int context_limit = 4096;
  std::string mismatch = "garbage";     // toolkit unlike the runtime: garbage | fine | refuse
  std::string init_error;               // see vendor_log.cpp
  std::optional<int> init_return;

  // Tokens.
  std::string tokenizer = "words";      // words | bytes
  std::map<std::string, int32_t> specials{{"<|endoftext|>", 256}, {"<|im_start|>", 257}, {"<|im_end|>", 258}};
  bool parse_specials = true;
  std::optional<int32_t> bos;
  int vocab = 32000;
  std::vector<int32_t> eos{258};
  bool eos_event = false;               // the EOS reaches the callback as a token
  std::string utf8 = "waiting_null";    // a character over several tokens: waiting_null | waiting_partial | split
  std::optional<ChatTemplate> chat_template;

  // The KV cache.
  bool reuse_prompt = true, reuse_token = true, reuse_multimodal = true, reuse_after_edit = true, reuse_across_lora = false;
  bool feed_last = false;               // the last token of an answer is in the cache too
  bool pause_keeps_cache = true;
  std::string after_abort = "keep";     // keep | cleared | spoiled (babbles until the cache is emptied)
  int overflow_margin = 4;              // context the runtime keeps for itself
  bool overflow_callback = false;       // an ERROR callback besides the -1
  std::string shift_mark = "<<context shifted>>";

  std::vector<Answer> answers;

  // Time.
  double load_ms = 0, prefill_us = 0, token_us = 0, destroy_ms = 0;  // prefill_us and token_us are per token

  // Abort.
  double abort_ms = 0;
  std::optional<double> abort_prefill_ms;
  std::string abort_effect = "stop";    // stop | ignored | hang_run | hang_call
  std::string abort_state = "finish";   // the last callback of an aborted run: finish | error | none
  int abort_return = 0;
  std::string abort_idle = "refused";   // nothing runs: refused (-1) | ok | sticky (kills the next run)

  // Running.
  std::string busy = "refused";         // a run beside a run: refused | submit
  int is_running_value = 1;             // what rkllm_is_running says while a run goes on; the other of 0 and 1 otherwise
  int late_callbacks = 0;
  std::optional<double> memory_mb;      // perf.memory_usage_mb; else the process's own peak
  double npu_mb = 0, npu_domain_mb = 4096;
  std::string when_short = "segv";      // NPU memory short: segv | error

  // Hidden states, logits, vision, prompt caches.
  int embd = 64;
  bool hidden_empty_first = true;       // a NORMAL callback without hidden states comes before the one with them
  std::string hidden_values = "formula"; // formula | nan (one in the last row) | zero
  bool hidden_split = false;            // a NORMAL callback per row
  std::string hidden_rows = "all";      // all | new (those of tokens prefilled now) | last
  bool logits_agree = true;
  int image_embd = 0;                   // floats per image token, outputs of the encoder included; 0: embd
  int image_width = 0, image_height = 0; // 0: any
  std::optional<std::string> image_start, image_end, image_content;
  std::string prompt_cache = "ok";      // ok | refuse | segv (when a file is corrupt) | silent (saves nothing and says it has)
  std::string adapters = "ok";          // ok | refuse | segv

  std::vector<Fault> faults;
};

enum class ModelFile { Missing, NotAModel, Read };

// Fills the script from the model file; see ModelFile for why it was not read.
ModelFile read_script(const std::string& path, Script& into);

}  // namespace standin
