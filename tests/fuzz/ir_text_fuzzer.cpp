#include "ir/text.h"
#include "ir/verify.h"
#include "tests/fuzz/file_of_bytes.h"

// The text form of graphs.

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  Result<Program> program = parse_program({reinterpret_cast<const char*>(bytes), size}, "fuzz.ir");
  if (!program) return llvm::consumeError(program.takeError()), 0;
  for (const Graph& graph : program->functions) to_text(graph);
  return 0;
}
