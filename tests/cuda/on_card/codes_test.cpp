#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// Weights out of codes, of shapes that cross the tiles of the kernels: each number is the reference's to the bit.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

SampleOperand bytes(const Shape& shape, DType dtype = DType::U8) {
  return dtype == DType::I8 ? samples::integers(shape, -128, 127, dtype) : samples::integers(shape, 0, 255, dtype);
}

Attrs dequantize_attrs(const std::string& format, int64_t block, const Shape& shape, DType dtype) {
  return {{"format", format}, {"block", block}, {"shape", shape}, {"dtype", dtype}};
}

}  // namespace

TEST_CASE("codes: numbers of blocks of any length, with one level of scales and with two, are the reference's") {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16})
    for (const Shape& shape : {Shape{300, 1000}, Shape{37, 24}, Shape{5, 9}})
      for (int64_t block : {8, 24, 64, 100}) {
        CAPTURE(to_string(shape));
        CAPTURE(block);
        const int64_t n = shape[0] * shape[1], scales = (n + block - 1) / block;
        const Attrs nf4 = dequantize_attrs("nf4", block, shape, dtype);
        check_bytes(KernelCase("dequantize", nf4, {bytes({(n + 1) / 2, 1}), samples::positive({scales})}, 1));
        check_bytes(KernelCase("dequantize", dequantize_attrs("int4", block, shape, dtype),
                               {bytes({(n + 1) / 2, 1}), samples::positive({scales})}, 1));
        check_bytes(KernelCase("dequantize", nf4,
                               {bytes({(n + 1) / 2, 1}), bytes({scales}), samples::positive({(scales + 255) / 256}),
                                samples::values({1}, {0.75})},
                               2));
      }
}

TEST_CASE("codes: numbers with a scale for each row are the reference's") {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16})
    for (int64_t columns : {8, 1000, 1001}) {
      CAPTURE(columns);
      const Shape shape{70, columns};
      check_bytes(KernelCase("dequantize", dequantize_attrs("int8", columns, shape, dtype),
                             {bytes(shape, DType::I8), samples::positive({70})}, 3));
      check_bytes(KernelCase("dequantize", dequantize_attrs("fp8", columns, shape, dtype),
                             {samples::normal(shape, DType::F8E4M3), samples::positive({70})}, 4));
    }
}

TEST_CASE(
    "codes: linear codes with scales in blocks along both axes, with zero points and without, are the reference's") {
  for (const auto& [format, code] :
       {std::pair("u4", DType::U8), {"i4", DType::U8}, {"i8", DType::I8}, {"u8", DType::U8}})
    for (const Shape& shape : {Shape{5, 40}, Shape{129, 1376}, Shape{300, 520}})
      for (const auto& [block_rows, block] : {std::pair<int64_t, int64_t>{1, 8}, {4, 16}, {128, 128}, {7, 1}, {3, 5}})
        for (DType scale : {DType::F32, DType::F16}) {
          CAPTURE(format);
          CAPTURE(to_string(shape));
          CAPTURE(block_rows);
          CAPTURE(block);
          const bool is_half = format[1] == '4';
          const Shape grid{(shape[0] + block_rows - 1) / block_rows, (shape[1] + block - 1) / block};
          const Attrs attrs{{"format", std::string(format)},
                            {"shape", shape},
                            {"block_rows", block_rows},
                            {"block", block},
                            {"dtype", scale == DType::F32 ? DType::BF16 : DType::F32}};
          const SampleOperand codes = is_half ? bytes({shape[0] * shape[1] / 2}) : bytes(shape, code),
                              scales = samples::positive(grid, scale);
          check_bytes(KernelCase("dequantize_linear", attrs, {codes, scales}, 5));
          const SampleOperand zeros = is_half ? bytes({grid[0], (grid[1] + 1) / 2}) : bytes(grid, code);
          check_bytes(KernelCase("dequantize_linear", attrs, {codes, scales, zeros}, 6));
        }
}
