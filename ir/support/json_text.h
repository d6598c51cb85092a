#pragma once

// JSON from outside.

#include "ir/support/status.h"

#include <cstdint>
#include <optional>

namespace llvm::json {
class Object;
class Value;
}  // namespace llvm::json

namespace plimsoll {

// What LLVM's parser makes of `text`, which recurses: values nested more than 64 deep are an error and no overflow of
// the stack. Fault::Model.
Result<llvm::json::Value> parse_json(llvm::StringRef text);

// A field of `object`, which may be null: none where the field is missing or of another kind. LLVM's own getters return
// an optional whose type depends on LLVM's version.
std::optional<bool> boolean_field(const llvm::json::Object* object, llvm::StringRef name);
std::optional<int64_t> integer_field(const llvm::json::Object* object, llvm::StringRef name);
std::optional<double> number_field(const llvm::json::Object* object, llvm::StringRef name);
std::optional<llvm::StringRef> text_field(const llvm::json::Object* object, llvm::StringRef name);

}  // namespace plimsoll
