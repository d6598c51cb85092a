#include "frontend/onnx/import_rows.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MemoryBuffer.h"

#include <doctest/doctest.h>

#include <set>

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

TEST_CASE("docs/import.md lists every operator there is a row for") {
  auto file = llvm::MemoryBuffer::getFile(PLIMSOLL_TEST_DATA "/../docs/import.md");
  REQUIRE(file);
  llvm::StringRef text = (*file)->getBuffer();
  text = text.slice(text.find("## Operators"), text.find("Limits:"));
  std::set<std::string> listed;
  while (!(text = text.ltrim()).empty()) {
    llvm::StringRef word = text.take_until(llvm::isSpace);
    listed.insert(word.str());
    text = text.drop_front(word.size());
  }
  for (const ImportRow* row : all_import_rows()) CHECK_MESSAGE(listed.count(row->op.str()), row->op.str());
}

TEST_CASE("an operator's form is that of the newest row up to the opset") {
  CHECK(find_import_row("Clip", 5) == nullptr);
  CHECK(find_import_row("Clip", 10)->since == 6);
  CHECK(find_import_row("Clip", 24)->since == 11);
  CHECK(find_import_row("NoSuchOperator", 24) == nullptr);
}

}  // namespace plimsoll
