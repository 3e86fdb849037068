#include "prompt.h"

#include <cstdio>

#include "checksum.h"
#include "loud.h"
#include "tokenizer.h"

namespace standin {
namespace {

constexpr char kImageMark[] = "<image>";
constexpr char kVideoMark[] = "<video>";

std::string apply_template(const Model& model, const std::string& prompt, bool thinking, bool continues) {
  if (!model.chat) return prompt;
  const ChatTemplate& chat = *model.chat;
  return (continues ? "" : chat.system) + chat.prefix + prompt + chat.postfix + (thinking ? "" : chat.no_think);
}

void add_text(const Model& model, const std::string& text, Encoded& into) {
  if (text.empty()) return;
  if (model.callbacks.tokenizer == nullptr) {
    for (const Piece& piece : tokenize(model.script, text)) into.ids.push_back(piece.id);
    return;
  }
  std::vector<int32_t> ids(text.size() + 8);
  const int count = model.callbacks.tokenizer(model.callbacks.tokenizer_userdata, text.data(), static_cast<int32_t>(text.size()),
                                              ids.data(), static_cast<int32_t>(ids.size()));
  if (count < 0 || static_cast<size_t>(count) > ids.size()) {
    model.log.line("tokenizer callback failed");
    into.ok = false;
    return;
  }
  into.ids.insert(into.ids.end(), ids.begin(), ids.begin() + count);
}

// A negative id per row, the same for the same floats.
void add_rows(const float* embed, size_t rows, size_t width, std::vector<int32_t>& into) {
  for (size_t row = 0; row < rows; ++row) {
    const uint32_t sum = crc32(embed + row * width, width * sizeof(float));
    into.push_back(-2 - static_cast<int32_t>(sum & 0x3FFFFFFFu));
  }
}

bool fits(const std::optional<std::string>& wanted, const char* given) {
  return !wanted || (given != nullptr && *wanted == given);
}

// What is wrong with the pixels, or an empty string.
std::string complaint(const Script& script, const Pixels& pixels) {
  if (pixels.embed == nullptr) return "the embedding is NULL";
  if (pixels.tokens_each == 0) return "no tokens per image";
  if (script.image_width > 0 && pixels.width != static_cast<size_t>(script.image_width)) return "wrong width";
  if (script.image_height > 0 && pixels.height != static_cast<size_t>(script.image_height)) return "wrong height";
  if (pixels.has_marks && !(fits(script.image_start, pixels.start) && fits(script.image_end, pixels.end) &&
                            fits(script.image_content, pixels.content))) {
    return "marks unlike the model's";
  }
  return "";
}

JsonLine describe(const Pixels& pixels, size_t width) {
  const size_t floats = pixels.tokens_each * pixels.count * width;
  JsonLine line;
  line.integer("count", static_cast<int64_t>(pixels.count)).integer("tokens", static_cast<int64_t>(pixels.tokens_each));
  line.integer("width", static_cast<int64_t>(pixels.width)).integer("height", static_cast<int64_t>(pixels.height));
  if (pixels.has_marks) {
    line.text_or_null("start", pixels.start).text_or_null("end", pixels.end).text_or_null("content", pixels.content);
  }
  line.integer("floats", static_cast<int64_t>(floats));
  if (pixels.embed != nullptr) line.integer("crc32", crc32(pixels.embed, floats * sizeof(float)));
  return line;
}

// Adds the prompt with each mark replaced by the next image's rows.
void add_marked(const Model& model, const std::string& text, const Pixels& pixels, const std::string& mark, Encoded& into) {
  const Script& script = model.script;
  const auto width = static_cast<size_t>(script.image_embd > 0 ? script.image_embd : script.embd);
  into.log.object(mark == kImageMark ? "image" : "video", describe(pixels, width));
  std::string wrong = complaint(script, pixels);
  size_t from = 0, placed = 0;
  for (size_t at = text.find(mark); wrong.empty() && at != std::string::npos; at = text.find(mark, from), ++placed) {
    if (placed == pixels.count) {
      wrong = "more marks than images";
      break;
    }
    add_text(model, text.substr(from, at - from) + (pixels.start != nullptr ? pixels.start : ""), into);
    const float* embed = pixels.embed + placed * pixels.tokens_each * width;
    add_rows(embed, pixels.tokens_each, width, into.ids);
    char sum[16];
    std::snprintf(sum, sizeof sum, "%08x", crc32(embed, pixels.tokens_each * width * sizeof(float)));
    into.images += (into.images.empty() ? "" : ",") + std::string(sum);
    if (pixels.end != nullptr) add_text(model, pixels.end, into);
    from = at + mark.size();
  }
  if (wrong.empty() && placed < pixels.count) wrong = "fewer marks than images";
  if (!wrong.empty()) {
    model.log.line("multimodal input refused: " + wrong);
    into.ok = false;
    return;
  }
  add_text(model, text.substr(from), into);
}

std::string required(const char* text, const char* field) {
  if (text == nullptr) die(std::string("basic_string: construction from null is not valid (") + field + ")");
  return text;
}

}  // namespace

Encoded encode(const Model& model, const Input& input, bool continues) {
  Encoded encoded;
  encoded.log.text_or_null("role", input.role).boolean("enable_thinking", input.enable_thinking);
  if (model.script.bos && !continues && input.type != RKLLM_INPUT_TOKEN) encoded.ids.push_back(*model.script.bos);
  switch (input.type) {
    case RKLLM_INPUT_PROMPT: {
      encoded.type = "prompt";
      const std::string prompt = required(input.prompt, "prompt_input");
      encoded.text = apply_template(model, prompt, input.enable_thinking, continues);
      encoded.log.text("prompt", prompt);
      add_text(model, encoded.text, encoded);
      break;
    }
    case RKLLM_INPUT_TOKEN:
      encoded.type = "token";
      if (input.ids == nullptr) die("token_input.input_ids is NULL");
      encoded.ids.insert(encoded.ids.end(), input.ids, input.ids + input.n_tokens);
      encoded.text = " ";
      for (const int32_t id : encoded.ids) encoded.text += std::to_string(id) + " ";
      break;
    case RKLLM_INPUT_EMBED:
      encoded.type = "embed";
      if (input.embed == nullptr) die("embed_input.embed is NULL");
      add_rows(input.embed, input.n_tokens, static_cast<size_t>(model.script.embd), encoded.ids);
      break;
    case RKLLM_INPUT_MULTIMODAL: {
      encoded.type = "multimodal";
      const std::string prompt = required(input.prompt, "multimodal_input.prompt");
      encoded.text = apply_template(model, prompt, input.enable_thinking, continues);
      encoded.log.text("prompt", prompt);
      if (input.image && input.image->count > 0) {
        add_marked(model, encoded.text, *input.image, kImageMark, encoded);
      } else if (input.video && input.video->count > 0) {
        add_marked(model, encoded.text, *input.video, kVideoMark, encoded);
      } else {
        add_text(model, encoded.text, encoded);
      }
      break;
    }
    default:
      die("unknown input_type " + std::to_string(static_cast<int>(input.type)) + ": is RKLLMInput laid out right?");
  }
  encoded.log.text("type", encoded.type);
  if (encoded.type != "token") encoded.log.text("text", encoded.text);
  encoded.log.ids("ids", encoded.ids);
  return encoded;
}

}  // namespace standin
