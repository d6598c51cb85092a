#pragma once

// Tests written as text: graphs with directives in comments, described in docs/text_form.md.

#include "ir/support/status.h"

#include <string>
#include <vector>

namespace plimsoll {

struct FileTestReport {
  std::vector<std::string> failures;  // "line: what"; empty: passed
  std::string blessed;                // the file's text with its check: lines rewritten from the output
};

FileTestReport run_file_test(llvm::StringRef text);

}  // namespace plimsoll
