#pragma once

// Writes Python's pickle format, protocol 2: the numbers, texts, lists and dictionaries of a report.

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

// Values are written one after the other: one in all, and inside a dictionary each key before its value.
class PickleStream {
 public:
  explicit PickleStream(llvm::raw_ostream& out);
  void finish();  // after the one value

  void integer(int64_t value);
  void text(llvm::StringRef value);
  // `write_entries` calls entry() before each item, or before each key.
  void list(llvm::function_ref<void()> write_entries) { collection(']', 'e', write_entries); }
  void dictionary(llvm::function_ref<void()> write_entries) { collection('}', 'u', write_entries); }
  void entry();

  void attribute(llvm::StringRef key, int64_t value) { entry(), text(key), integer(value); }
  void attribute(llvm::StringRef key, llvm::StringRef value) { entry(), text(key), text(value); }
  void attribute_list(llvm::StringRef key, llvm::function_ref<void()> write_entries) {
    entry(), text(key), list(write_entries);
  }

 private:
  void collection(char empty, char add_entries, llvm::function_ref<void()> write_entries);

  llvm::raw_ostream& out_;
  int batched_ = 0;       // entries of the innermost collection since they were last added to it
  char add_entries_ = 0;  // its opcode for that
};

}  // namespace plimsoll
