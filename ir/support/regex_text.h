#pragma once

// Regular expressions from outside.

#include "ir/support/status.h"

#include "llvm/Support/Regex.h"

namespace plimsoll {

// The POSIX extended expression `pattern`, within ^( )$ where `whole` is set. LLVM's parser copies what a bound such as
// {1,255} repeats, so that nested bounds take all memory: an expression of more than 10,000 parts is an error, and so
// is one that LLVM refuses. Fault::Usage.
Result<llvm::Regex> parse_regex(llvm::StringRef pattern, bool whole = false);

}  // namespace plimsoll
