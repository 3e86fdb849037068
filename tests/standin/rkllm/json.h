// Just enough JSON: values read from a model file's script, and one-line objects written to the call log.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace standin {

class Json {
 public:
  enum class Kind { Null, Bool, Number, String, Array, Object };

  // Raises std::runtime_error with the offset of what is wrong.
  static Json parse(const std::string& text);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }

  // Each raises std::runtime_error when the value is of another kind.
  bool boolean() const;
  double number() const;
  const std::string& string() const;
  const std::vector<Json>& array() const;
  const std::map<std::string, Json>& object() const;

 private:
  friend class JsonParser;
  void expect(Kind kind) const;

  Kind kind_ = Kind::Null;
  bool boolean_ = false;
  double number_ = 0;
  std::string string_;
  std::vector<Json> array_;
  std::map<std::string, Json> object_;
};

// One JSON object on one line. Text that is not UTF-8 is written byte for byte as U+0000..U+00FF, so that the log always
// reads back.
class JsonLine {
 public:
  JsonLine& text(const char* key, const std::string& value);
  JsonLine& text_or_null(const char* key, const char* value);
  JsonLine& number(const char* key, double value);
  JsonLine& integer(const char* key, int64_t value);
  JsonLine& boolean(const char* key, bool value);
  JsonLine& null(const char* key);
  JsonLine& ids(const char* key, const std::vector<int32_t>& values);
  JsonLine& object(const char* key, const JsonLine& value);
  std::string str() const { return "{" + body_ + "}"; }

 private:
  JsonLine& raw(const char* key, const std::string& value);
  std::string body_;
};

bool is_utf8(const std::string& bytes);

}  // namespace standin
