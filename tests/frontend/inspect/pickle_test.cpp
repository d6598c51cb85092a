#include "frontend/inspect/pickle.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

TEST_SUITE("unit") {
  // Python writes {"a": [1, -2**40]} with pickle.dumps(..., protocol=2) in the same opcodes, apart from its memo.
  TEST_CASE("pickle: numbers, texts, lists and dictionaries") {
    std::string text;
    llvm::raw_string_ostream out(text);
    PickleStream pickle(out);
    pickle.dictionary([&] {
      pickle.attribute_list("a", [&] {
        pickle.entry();
        pickle.integer(1);
        pickle.entry();
        pickle.integer(-(int64_t{1} << 40));
      });
    });
    pickle.finish();
    using namespace std::string_literals;
    CHECK(out.str() ==
          "\x80\x02}(X\x01\0\0\0a](J\x01\0\0\0\x8a\x08\0\0\0\0\0\xff\xff\xff"
          "eu."s);
  }

  TEST_CASE("pickle: long lists are added in parts, also behind a list inside") {
    std::string text;
    llvm::raw_string_ostream out(text);
    PickleStream pickle(out);
    pickle.list([&] {
      for (int i = 0; i < 2500; ++i) {
        pickle.entry();
        pickle.list([] {});
      }
    });
    pickle.finish();
    CHECK(llvm::StringRef(out.str()).count("e(") == 2);
    CHECK(llvm::StringRef(text).count("](e") == 2500);
  }
}

}  // namespace
}  // namespace plimsoll
