#include "frontend/driver/config_file.h"
#include "frontend/driver/transforms_file.h"
#include "ir/mesh.h"
#include "ir/support/printable.h"
#include "ir/support/units.h"
#include "passes/target/precision_rules.h"
#include "tests/fuzz/file_of_bytes.h"

#include "llvm/ADT/StringExtras.h"

// The TOML files of --config and --transforms, the file of precision rules, small texts of options, and what is printed
// of names from outside.

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  const testing::FileOfBytes file(bytes, size);
  testing::take(words_of_config({"compile", "--config", file.path()},
                                {{"compile", {"--lr", "--freeze", "--budget", "--nesterov"}}, {"run", {"--steps"}}}));
  testing::take(read_transforms(file.path()));
  const llvm::StringRef text(reinterpret_cast<const char*>(bytes), size);
  testing::take(parse_precision_rules(text));
  testing::take(parse_mesh(text));
  testing::take(parse_bytes(text));
  const std::string shown = printable(text);
  for (char c : shown)
    if (static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t') std::abort();
  return 0;
}
