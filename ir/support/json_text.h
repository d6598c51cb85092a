#pragma once

// JSON from outside.

#include "ir/support/status.h"

namespace llvm::json {
class Value;
}

namespace plimsoll {

// What LLVM's parser makes of `text`, which recurses: values nested more than 64 deep are an error and no overflow of
// the stack. Fault::Model.
Result<llvm::json::Value> parse_json(llvm::StringRef text);

}  // namespace plimsoll
