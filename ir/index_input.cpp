#include "ir/index_input.h"

#include "llvm/ADT/SmallVector.h"

namespace plimsoll {

std::string to_text(const IndexInput& input) {
  std::string text = "indices below " + std::to_string(input.count);
  if (input.is_token) text += ", tokens";
  if (input.is_label) text += ", labels";
  if (input.shift) text += ", shift " + std::to_string(*input.shift);
  return text;
}

std::optional<IndexInput> parse_index_input(llvm::StringRef name, llvm::StringRef text) {
  IndexInput input;
  input.name = name.str();
  llvm::SmallVector<llvm::StringRef, 4> parts;
  text.split(parts, ", ");
  for (llvm::StringRef part : parts) {
    int64_t shift = 0;
    if (part.consume_front("indices below ")) {
      if (part.getAsInteger(10, input.count) || input.count < 0) return std::nullopt;
    } else if (part.consume_front("shift ")) {
      if (part.getAsInteger(10, shift)) return std::nullopt;
      input.shift = shift;
    } else if (part == "tokens") {
      input.is_token = true;
    } else if (part == "labels") {
      input.is_label = true;
    } else {
      return std::nullopt;
    }
  }
  return input;
}

}  // namespace plimsoll
