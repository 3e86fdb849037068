#include "json.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "utf8.h"

namespace standin {

class JsonParser {
 public:
  explicit JsonParser(const std::string& text) : text_(text) {}

  Json document() {
    Json value = parse_value();
    skip_space();
    if (at_ != text_.size()) fail("something follows the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("JSON, offset " + std::to_string(at_) + ": " + what);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  char peek() {
    skip_space();
    if (at_ >= text_.size()) fail("it ends too early");
    return text_[at_];
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void need(char wanted) {
    if (!take(wanted)) fail(std::string("expected ") + wanted);
  }

  bool take_word(const char* word) {
    const std::string wanted(word);
    if (text_.compare(at_, wanted.size(), wanted) != 0) return false;
    at_ += wanted.size();
    return true;
  }

  Json parse_value() {
    Json value;
    switch (peek()) {
      case '{':
        value.kind_ = Json::Kind::Object;
        parse_object(value.object_);
        break;
      case '[':
        value.kind_ = Json::Kind::Array;
        parse_array(value.array_);
        break;
      case '"':
        value.kind_ = Json::Kind::String;
        value.string_ = parse_string();
        break;
      case 't':
      case 'f':
        value.kind_ = Json::Kind::Bool;
        value.boolean_ = text_[at_] == 't';
        if (!take_word(value.boolean_ ? "true" : "false")) fail("unknown word");
        break;
      case 'n':
        if (!take_word("null")) fail("unknown word");
        break;
      default:
        value.kind_ = Json::Kind::Number;
        value.number_ = parse_number();
    }
    return value;
  }

  void parse_object(std::map<std::string, Json>& into) {
    need('{');
    if (take('}')) return;
    do {
      if (peek() != '"') fail("expected a key");
      std::string key = parse_string();
      need(':');
      if (!into.emplace(key, parse_value()).second) fail("key twice: " + key);
    } while (take(','));
    need('}');
  }

  void parse_array(std::vector<Json>& into) {
    need('[');
    if (take(']')) return;
    do {
      into.push_back(parse_value());
    } while (take(','));
    need(']');
  }

  double parse_number() {
    const char* begin = text_.c_str() + at_;
    char* end = nullptr;
    const double number = std::strtod(begin, &end);
    if (end == begin || !std::isfinite(number)) fail("not a value");
    at_ += static_cast<size_t>(end - begin);
    return number;
  }

  uint32_t parse_hex4() {
    if (at_ + 4 > text_.size()) fail("short \\u");
    char* end = nullptr;
    const std::string digits = text_.substr(at_, 4);
    const unsigned long code = std::strtoul(digits.c_str(), &end, 16);
    if (*end != '\0') fail("bad \\u");
    at_ += 4;
    return static_cast<uint32_t>(code);
  }

  std::string parse_string() {
    need('"');
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) fail("string without an end");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ >= text_.size()) fail("string without an end");
      const char escape = text_[at_++];
      switch (escape) {
        case 'n': out += '\n'; break;
        case 't': out += '\t'; break;
        case 'r': out += '\r'; break;
        case 'b': out += '\b'; break;
        case 'f': out += '\f'; break;
        case 'u': {
          uint32_t code = parse_hex4();
          if (code >= 0xD800 && code < 0xDC00) {
            if (!take_word("\\u")) fail("half a surrogate pair");
            code = 0x10000 + ((code - 0xD800) << 10) + (parse_hex4() - 0xDC00);
          }
          append_utf8(out, code);
          break;
        }
        default: out += escape;
      }
    }
  }

  const std::string& text_;
  size_t at_ = 0;
};

Json Json::parse(const std::string& text) { return JsonParser(text).document(); }

void Json::expect(Kind kind) const {
  static const char* const names[] = {"null", "a boolean", "a number", "a string", "an array", "an object"};
  if (kind_ != kind) throw std::runtime_error(std::string("expected ") + names[static_cast<int>(kind)]);
}

bool Json::boolean() const { return expect(Kind::Bool), boolean_; }
double Json::number() const { return expect(Kind::Number), number_; }
const std::string& Json::string() const { return expect(Kind::String), string_; }
const std::vector<Json>& Json::array() const { return expect(Kind::Array), array_; }
const std::map<std::string, Json>& Json::object() const { return expect(Kind::Object), object_; }

JsonLine& JsonLine::raw(const char* key, const std::string& value) {
  if (!body_.empty()) body_ += ", ";
  body_ += '"';
  body_ += key;
  body_ += "\": " + value;
  return *this;
}

JsonLine& JsonLine::text(const char* key, const std::string& value) {
  const bool utf8 = is_utf8(value);
  std::string quoted = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || (byte >= 0x80 && !utf8)) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return raw(key, quoted + '"');
}

JsonLine& JsonLine::text_or_null(const char* key, const char* value) {
  return value == nullptr ? null(key) : text(key, value);
}

JsonLine& JsonLine::number(const char* key, double value) {
  if (!std::isfinite(value)) return text(key, std::isnan(value) ? "nan" : "inf");
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.9g", value);
  return raw(key, digits);
}

JsonLine& JsonLine::integer(const char* key, int64_t value) { return raw(key, std::to_string(value)); }
JsonLine& JsonLine::boolean(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
JsonLine& JsonLine::null(const char* key) { return raw(key, "null"); }
JsonLine& JsonLine::object(const char* key, const JsonLine& value) { return raw(key, value.str()); }

JsonLine& JsonLine::ids(const char* key, const std::vector<int32_t>& values) {
  std::string list = "[";
  for (const int32_t value : values) {
    if (list.size() > 1) list += ", ";
    list += std::to_string(value);
  }
  return raw(key, list + "]");
}

bool is_utf8(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = utf8_length(bytes, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace standin
