#pragma once

// Words and columns of the reports: padding that counts what a terminal shows, colours only where they are
// wanted.

#include "frontend/inspect/print.h"
#include "ir/support/units.h"

#include <string>

namespace plimsoll {

enum class Style : uint8_t { Plain, Strong, Quiet, Good, Warn, Accent };

class TextTable {
 public:
  TextTable(llvm::raw_ostream& out, const ReportOptions& options) : out_(out), options_(options) {}

  int columns() const { return options_.columns; }
  std::string styled(Style tone, llvm::StringRef text) const;
  void line(llvm::StringRef text = "") { out_ << text.rtrim(' ') << "\n"; }
  void heading(llvm::StringRef title, llvm::StringRef note = "");

 private:
  llvm::raw_ostream& out_;
  ReportOptions options_;
};

int width_of(llvm::StringRef text);                             // characters of UTF-8 text without colours
std::string clipped(llvm::StringRef text, int columns);         // with "…" where it is too long
std::string clipped_middle(llvm::StringRef text, int columns);  // names keep both ends
std::string left(llvm::StringRef text, int columns);
std::string right(llvm::StringRef text, int columns);
std::string bar(double share, int columns);  // "███▌", eighths of a character
std::string repeated(llvm::StringRef text, int count);

}  // namespace plimsoll
