#include "ir/support/units.h"

#include <doctest/doctest.h>

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

TEST_CASE("sizes are read with binary and decimal units") {
  auto bytes = [](llvm::StringRef text) {
    Result<int64_t> value = parse_bytes(text);
    return value ? *value : (llvm::consumeError(value.takeError()), int64_t{-1});
  };
  CHECK(bytes("4096") == 4096);
  CHECK(bytes("2KiB") == 2048);
  CHECK(bytes("1.5GiB") == int64_t{3} << 29);
  CHECK(bytes(" 512 MB ") == 512'000'000);
  CHECK(bytes("24gib") == int64_t{24} << 30);
  CHECK(bytes("0") == 0);
  for (llvm::StringRef wrong : {"", "GiB", "-1", "12 parsecs", "1e30", "nan", "9999999TiB", "1.5.2GB"}) {
    CAPTURE(wrong.str());
    CHECK(bytes(wrong) == -1);
  }
}

TEST_CASE("sizes are written with three digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1 KiB");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(25125558682) == "23.4 GiB");
  CHECK(format_bytes(int64_t{1} << 40) == "1 TiB");
  CHECK(format_bytes((int64_t{1} << 30) - 1) == "1 GiB");
  CHECK(format_bytes(-2048) == "-2 KiB");
}

TEST_CASE("a readable size is written as it is, and little above what was asked") {
  for (int64_t size : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{1025}, int64_t{701617920}, int64_t{25125558682},
                       (int64_t{1} << 30) - 1}) {
    CAPTURE(size);
    int64_t readable = round_up_readable(size);
    CHECK(llvm::cantFail(parse_bytes(format_bytes(readable))) == readable);
    CHECK(readable >= size);
    CHECK(static_cast<double>(readable) <= 1.011 * static_cast<double>(size));
  }
}

TEST_SUITE_END();

}  // namespace plimsoll
