#pragma once

// Lines and columns of the text reports. Padding counts the characters that a terminal shows, and styles apply only if
// the options ask for colour.

#include "frontend/inspect/print.h"
#include "ir/support/units.h"

#include <string>

namespace plimsoll {

enum class Style : uint8_t { Plain, Strong, Quiet, Good, Warn, Accent };

class TextTable {
 public:
  TextTable(llvm::raw_ostream& out, const ReportOptions& options) : out_(out), options_(options) {}

  int columns() const { return options_.columns; }
  std::string styled(Style style, llvm::StringRef text) const;
  void line(llvm::StringRef text = "") { out_ << text.rtrim(' ') << "\n"; }
  void heading(llvm::StringRef title, llvm::StringRef note = "");

 private:
  llvm::raw_ostream& out_;
  ReportOptions options_;
};

int width_of(llvm::StringRef text);                             // number of characters of UTF-8 text without styles
std::string clipped(llvm::StringRef text, int columns);         // ends in "…" if it was too long
std::string clipped_middle(llvm::StringRef text, int columns);  // keeps both ends of a name
std::string left(llvm::StringRef text, int columns);
std::string right(llvm::StringRef text, int columns);
std::string bar(double share, int columns);  // "███▌", eighths of a character
std::string repeated(llvm::StringRef text, int count);

}  // namespace plimsoll
