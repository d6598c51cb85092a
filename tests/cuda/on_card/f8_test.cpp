#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Codes of 8 bits and their scales are defined to the bit: those of the card are the reference's.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_CASE("8-bit floats: codes of every bf16 number in each layout, by kernel, are the reference's") {
  for (DType to : {DType::F8E4M3, DType::F8E5M2})
    for (int64_t layouts : {1, 2, 3}) {
      KernelCase c("to_f8", {{"to", to}, {"rows", layouts & 1}, {"columns", layouts >> 1}},
                   {samples::normal({256, 256}, DType::BF16), samples::values({}, {0x1p-3})}, 1);
      for (int i = 0; i < 65536; ++i) c.tensors[0].view().as<uint16_t>()[i] = static_cast<uint16_t>(i);
      check_bytes(c);
    }
}

TEST_CASE("8-bit floats: codes of tensors that cross the tiles of the kernel, and their scales, are the reference's") {
  for (const Shape& shape : {Shape{16, 16}, Shape{144, 80}, Shape{3, 112, 208}, Shape{400, 1040}})
    for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
      CAPTURE(to_string(shape));
      check_bytes(KernelCase("to_f8", {{"to", DType::F8E4M3}, {"rows", 1}, {"columns", 1}},
                             {samples::normal(shape, dtype), samples::values({}, {0x1p-7})}, 2));
      check_bytes(KernelCase("f8_scale", {{"to", DType::F8E5M2}}, {samples::normal(shape, dtype)}, 3));
    }
  for (int64_t n : {1, 7, 16384, 16385, 100003}) {
    KernelCase c("f8_scale", {{"to", DType::F8E4M3}}, {samples::normal({n})}, 4);
    c.tensors[0].view().set(n - 1, -1e6);  // the last number decides
    check_bytes(c);
  }
}
