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

}  // namespace

Result<llvm::json::Value> parse_json(llvm::StringRef text) {
  if (is_too_deep(text)) return model_error("JSON is nested more than " + llvm::Twine(max_depth) + " deep");
  Result<llvm::json::Value> value = llvm::json::parse(text);
  if (!value) return model_error(llvm::toString(value.takeError()));
  return value;
}

}  // namespace plimsoll
