#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

#include <cmath>

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

TEST_CASE("8-bit floats: codes and scales of rows, blocks and tiles are the reference's") {
  struct Way {
    const char* by;
    std::vector<Shape> shapes;
  };
  // Rows of one access a thread up to rows that do not fit into registers.
  const Way ways[] = {
      {"rows", {{16, 16}, {3, 112, 208}, {400, 1040}, {48, 2048}, {32, 3072}, {16, 8192}, {16, 10016}, {16, 16640}}},
      {"blocks", {{128, 128}, {2, 64, 384}, {512, 1280}}},
      {"tiles", {{128, 128}, {256, 640}, {640, 384}}},
  };
  for (const auto& [by, shapes] : ways)
    for (const Shape& shape : shapes)
      for (DType dtype : {DType::F32, DType::BF16, DType::F16})
        for (DType to : {DType::F8E4M3, DType::F8E5M2})
          for (int64_t layouts : {1, 2, 3}) {
            CAPTURE(by);
            CAPTURE(to_string(shape));
            KernelCase c("to_scaled_f8", {{"to", to}, {"by", by}, {"rows", layouts & 1}, {"columns", layouts >> 1}},
                         {samples::normal(shape, dtype)}, 5);
            const int64_t n = c.tensors[0].type().elements();
            for (int64_t i = 0; i < n; ++i)
              c.tensors[0].view().set(i, c.tensors[0].get(i) * std::ldexp(1.0, static_cast<int>(i * 7 / 5 % 12) - 6));
            for (int64_t i = 0; i < shape.back(); ++i) c.tensors[0].view().set(i, 0);
            c.tensors[0].view().set(n - 1, -1000);
            c.tensors[0].view().set(n / 2, NAN);
            check_bytes(c);
          }
}

TEST_CASE("8-bit floats: products with scales of rows and blocks, by the library, are near the reference's") {
  const auto powers = [](const Shape& shape) {
    SampleOperand scales = samples::values(shape, Floats(static_cast<size_t>(element_count(shape))));
    for (size_t i = 0; i < scales.values.size(); ++i)
      scales.values[i] = std::ldexp(1.0, static_cast<int>(i * 5 % 7) - 3);
    return scales;
  };
  constexpr int64_t rows = 384, inner = 640, columns = 256, block = 128;
  const Shape rows_of_x{rows}, rows_of_w{columns}, blocks_of_x{inner / block, rows},
      blocks_of_w{inner / block, columns}, tiles_of_w{columns / block, 8};
  const std::pair<Shape, Shape> scales[] = {
      {rows_of_x, rows_of_w}, {blocks_of_x, tiles_of_w}, {blocks_of_x, blocks_of_w}};
  const CudaCatalog catalog(card_under_test(), /*any_order=*/true);
  for (const auto& [of_x, of_w] : scales)
    for (const auto& [x_codes, w_codes] :
         {std::pair(DType::F8E4M3, DType::F8E4M3), {DType::F8E5M2, DType::F8E4M3}, {DType::F8E4M3, DType::F8E5M2}})
      for (DType dtype : {DType::BF16, DType::F32})
        for (bool fast_sums : {false, true})
          for (int64_t more : {0, 1, 2}) {  // nothing, a bias, an addend
            const bool has_blocks = of_x.size() == 2;
            if ((more == 1 && dtype == DType::F32) || (has_blocks && fast_sums)) continue;
            const std::string what = to_string(of_x) + " " + to_string(of_w) + ", " + dtype_name(x_codes).str() +
                                     " x " + dtype_name(w_codes).str() + " to " + dtype_name(dtype).str() +
                                     (fast_sums ? ", fast sums" : "") +
                                     (more == 1   ? ", bias"
                                      : more == 2 ? ", addend"
                                                  : "");
            // Each by itself, so that one that the library refuses hides no other.
            SUBCASE(what.c_str()) {
              const KernelCase c(
                  "linear_f8", {{"dtype", dtype}, {"fast_sums", fast_sums ? 1 : 0}},
                  {samples::normal({rows, inner}, x_codes), samples::normal({columns, inner}, w_codes), powers(of_x),
                   powers(of_w), more == 1 ? samples::normal({columns}, dtype) : samples::absent(),
                   more == 2 ? samples::normal({rows, columns}, dtype) : samples::absent()},
                  6);
              const KernelCandidate kernel = candidates_of(catalog, c).front();
              REQUIRE(kernel.name == "cublaslt_scales");
              const std::vector<Tensor> got = CaseOnCard(c, kernel, {}).run(c);
              CHECK_MESSAGE(!got.empty(), "the library has no algorithm");
              check_results(c, got, run_reference(c));
            }
          }
}
