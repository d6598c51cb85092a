#pragma once

// Names in models and plans come from outside, and may hold bytes that a terminal obeys.

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

#include <string>

namespace plimsoll {

// `text` with control characters, but for line feeds and tabs, and bytes that are no UTF-8 as \xNN.
std::string printable(llvm::StringRef text);

// Writes what is printable of its text to another stream. Styles (ESC [ digits m) pass where they are wanted.
class PrintableStream : public llvm::raw_ostream {
 public:
  PrintableStream(llvm::raw_ostream& to, bool with_styles) : to_(to), with_styles_(with_styles) {}
  ~PrintableStream() override;

 private:
  void write_impl(const char* at, size_t size) override;
  uint64_t current_pos() const override { return written_; }

  llvm::raw_ostream& to_;
  bool with_styles_;
  std::string pending_;  // the start of a character or of a style whose end is not yet written
  uint64_t written_ = 0;
};

}  // namespace plimsoll
