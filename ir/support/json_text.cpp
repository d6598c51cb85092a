#include "ir/support/json_text.h"

#include "llvm/Support/JSON.h"

namespace plimsoll {
namespace {

constexpr int max_depth = 64;

// Brackets inside of strings do not count.
bool is_too_deep(llvm::StringRef text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// `found` is an optional of the standard library or of LLVM.
template <typename T>
std::optional<T> as_standard(const auto& found) {
  return found ? std::optional<T>(*found) : std::nullopt;
}

}  // namespace

Result<llvm::json::Value> parse_json(llvm::StringRef text) {
  if (is_too_deep(text)) return model_error("JSON is nested more than " + llvm::Twine(max_depth) + " deep");
  Result<llvm::json::Value> value = llvm::json::parse(text);
  if (!value) return model_error(llvm::toString(value.takeError()));
  return value;
}

std::optional<bool> boolean_field(const llvm::json::Object* object, llvm::StringRef name) {
  return object ? as_standard<bool>(object->getBoolean(name)) : std::nullopt;
}

std::optional<int64_t> integer_field(const llvm::json::Object* object, llvm::StringRef name) {
  return object ? as_standard<int64_t>(object->getInteger(name)) : std::nullopt;
}

std::optional<double> number_field(const llvm::json::Object* object, llvm::StringRef name) {
  return object ? as_standard<double>(object->getNumber(name)) : std::nullopt;
}

std::optional<llvm::StringRef> text_field(const llvm::json::Object* object, llvm::StringRef name) {
  return object ? as_standard<llvm::StringRef>(object->getString(name)) : std::nullopt;
}

}  // namespace plimsoll
