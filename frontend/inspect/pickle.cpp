#include "frontend/inspect/pickle.h"

#include "ir/support/little_endian.h"

#include <limits>
#include <utility>

namespace plimsoll {
namespace {

// Opcodes as Python's pickletools describes them.
constexpr char protocol = '\x80', stop = '.', mark = '(', four_bytes = 'J', long_of_bytes = '\x8a', unicode = 'X';

// As many as Python adds at once. Readers hold them on their stack.
constexpr int largest_batch = 1000;

}  // namespace

PickleStream::PickleStream(llvm::raw_ostream& out) : out_(out) { out_ << protocol << '\x02'; }

void PickleStream::finish() { out_ << stop; }

void PickleStream::integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    out_ << four_bytes << little_endian(static_cast<int32_t>(value));
  } else {
    out_ << long_of_bytes << '\x08' << little_endian(value);
  }
}

void PickleStream::text(llvm::StringRef value) {
  out_ << unicode << little_endian(static_cast<uint32_t>(value.size())) << value;
}

void PickleStream::entry() {
  if (batched_++ < largest_batch) return;
  out_ << add_entries_ << mark;
  batched_ = 1;
}

void PickleStream::collection(char empty, char add_entries, llvm::function_ref<void()> write_entries) {
  const int outer_batched = std::exchange(batched_, 0);
  const char outer_add = std::exchange(add_entries_, add_entries);
  out_ << empty << mark;
  write_entries();
  out_ << add_entries;
  batched_ = outer_batched;
  add_entries_ = outer_add;
}

}  // namespace plimsoll
