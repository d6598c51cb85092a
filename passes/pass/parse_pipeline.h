#pragma once

// A pipeline is text: "fold-constants, insert-casts{to=bf16}". Steps are separated by commas, options inside braces by
// blanks. A value that holds one of these stands in double quotes; a quote inside is doubled.

#include "passes/pass/pass.h"

namespace plimsoll {

struct PipelineStep {
  const PassInfo* pass = nullptr;
  OptionValues options;
};

struct Pipeline {
  std::vector<PipelineStep> steps;
  std::string to_text() const;
};

// Unknown passes and options are usage errors with the nearest name; so are values of another type or out of range.
Result<Pipeline> parse_pipeline(llvm::StringRef text);

// A value as pipelines write it, in quotes where it needs them.
std::string option_text(llvm::StringRef value);

}  // namespace plimsoll
