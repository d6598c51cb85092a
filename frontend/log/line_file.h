#pragma once

// A text file that grows by a line per record. One run at a time writes it, and every line is in the file before the
// next step starts, so that a run that is killed keeps its measurements.

#include "ir/support/status.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <memory>
#include <optional>

namespace plimsoll {

class LineFile {
 public:
  // The step of a line; none for a line that is no record.
  using StepOf = llvm::function_ref<std::optional<int64_t>(llvm::StringRef line)>;

  // Of a run that is resumed after step `done` the lines up to the last one of such a step stay. With `done` 0 the file
  // begins anew.
  static Result<LineFile> open(llvm::StringRef path, int64_t done, StepOf step_of);

  const std::string& path() const { return path_; }
  const std::string& first_line() const { return first_line_; }  // that stayed; empty: none did
  Status write(llvm::StringRef line);                            // without its line feed

 private:
  std::unique_ptr<llvm::raw_fd_ostream> out_;
  std::string path_, first_line_;
};

}  // namespace plimsoll
