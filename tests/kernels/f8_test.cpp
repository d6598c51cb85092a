#include "ir/ops/common/samples.h"
#include "tests/kernels/kernel_run.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

// Codes of 8 bits and their scales are defined to the bit, so kernels and references are compared so.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

SampleOperand list(llvm::ArrayRef<double> values, DType dtype = DType::F32) {
  return samples::values({static_cast<int64_t>(values.size())}, values, dtype);
}

std::vector<int> codes_of(DType to, llvm::ArrayRef<double> values) {
  const KernelCase c("to_f8", {{"to", to}, {"rows", 1}}, {list(values), samples::values({}, {1})}, 1);
  const Tensor codes = run_reference(c).front();
  std::vector<int> bytes;
  for (int64_t i = 0; i < codes.type().elements(); ++i) bytes.push_back(codes.view().as<uint8_t>()[i]);
  return bytes;
}

// Every result of every kernel has the reference's bytes.
void check_bytes(const KernelCase& c) {
  const std::vector<Tensor> wanted = run_reference(c);
  llvm::SmallVector<const Type*, 4> types = c.types();
  const CpuKernelTable table;
  const Types results = result_types_of(c);
  for (const CpuCandidate& kernel : table.candidates(c.op, OpCall(c.op, c.attrs, types), results)) {
    const std::vector<Tensor> got = run_kernel(kernel, c, {});
    for (size_t r = 0; r < wanted.size(); ++r) {
      CAPTURE(kernel.name());
      CHECK(std::memcmp(got[r].data(), wanted[r].data(), static_cast<size_t>(wanted[r].type().bytes())) == 0);
    }
  }
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("8-bit floats: codes are those of PyTorch's float8 types") {
    const std::vector<double> numbers = {0,      -0.0,         1,      -1,     1.0625,  1.1875,       1.125,       0.1,
                                         -0.3,   3.1415927,    17,     200,    232,     248,          447.9,       448,
                                         0x1p-6, 0.0146484375, 0x1p-7, 0x1p-9, 0x1p-10, 0.0029296875, 0.0048828125};
    CHECK(codes_of(DType::F8E4M3, numbers) == std::vector<int>{0x00, 0x80, 0x38, 0xb8, 0x38, 0x3a, 0x39, 0x1d,
                                                               0xaa, 0x45, 0x58, 0x74, 0x76, 0x78, 0x7e, 0x7e,
                                                               0x08, 0x08, 0x04, 0x01, 0x00, 0x02, 0x02});
    CHECK(codes_of(DType::F8E5M2, numbers) == std::vector<int>{0x00, 0x80, 0x3c, 0xbc, 0x3c, 0x3d, 0x3c, 0x2e,
                                                               0xb5, 0x42, 0x4c, 0x5a, 0x5b, 0x5c, 0x5f, 0x5f,
                                                               0x24, 0x24, 0x20, 0x18, 0x14, 0x1a, 0x1d});
    CHECK(codes_of(DType::F8E5M2, {57344, 50000, 53248, 0x1p-14, 0x1p-15, 0x1p-16, 0x1p-17, 0x1.8p-16}) ==
          std::vector<int>{0x7b, 0x7a, 0x7a, 0x04, 0x02, 0x01, 0x00, 0x02});
  }

  TEST_CASE("8-bit floats: what lies behind the largest code becomes it, and NaN stays NaN") {
    const std::vector<double> numbers = {449, -1e30, INFINITY, -INFINITY, NAN, -NAN};
    CHECK(codes_of(DType::F8E4M3, numbers) == std::vector<int>{0x7e, 0xfe, 0x7e, 0xfe, 0x7f, 0x7f});
    CHECK(codes_of(DType::F8E5M2, {1e6, -1e30, INFINITY, -INFINITY, NAN, -NAN}) ==
          std::vector<int>{0x7b, 0xfb, 0x7b, 0xfb, 0x7f, 0x7f});
  }

  TEST_CASE("8-bit floats: kernels give the reference's codes of every bf16 number") {
    for (DType to : {DType::F8E4M3, DType::F8E5M2})
      for (double scale : {1.0, 0x1p-7, 0x1p-126, 0x1p119}) {
        KernelCase c("to_f8", {{"to", to}, {"rows", 1}, {"columns", 1}},
                     {samples::normal({256, 256}, DType::BF16), samples::values({}, {scale})}, 1);
        for (int i = 0; i < 65536; ++i) c.tensors[0].view().as<uint16_t>()[i] = static_cast<uint16_t>(i);
        check_bytes(c);
      }
  }

  TEST_CASE("8-bit floats: kernels give the reference's codes of random f32 numbers and ties") {
    std::mt19937 engine(7);
    for (DType to : {DType::F8E4M3, DType::F8E5M2}) {
      KernelCase c("to_f8", {{"to", to}, {"rows", 1}, {"columns", 1}},
                   {samples::normal({192, 320}), samples::values({}, {1})}, 1);
      const int cut = to == DType::F8E4M3 ? 19 : 20;  // bits behind the half of a code's last bit
      for (int64_t i = 0; i < c.tensors[0].type().elements(); ++i) {
        const uint32_t exponent = 127 - 20 + engine() % 40;
        uint32_t bits = (engine() & 0x807fffff) | exponent << 23;
        if (i % 3 == 0) bits = bits >> cut << cut;
        c.tensors[0].view().as<float>()[i] = std::bit_cast<float>(bits);
      }
      check_bytes(c);
    }
  }

  TEST_CASE("8-bit floats: scales are the smallest powers of two that bring all numbers within the codes") {
    std::mt19937 engine(3);
    for (DType to : {DType::F8E4M3, DType::F8E5M2})
      for (int round = 0; round < 200; ++round) {
        const double largest = to == DType::F8E4M3 ? 448 : 57344;
        KernelCase c("f8_scale", {{"to", to}}, {samples::normal({5, 37})}, 1);
        const uint64_t exponent = engine() % 255;
        for (int64_t i = 0; i < 185; ++i)
          c.tensors[0].view().as<float>()[i] =
              std::bit_cast<float>((static_cast<uint32_t>(engine()) & 0x807fffff) |
                                   static_cast<uint32_t>(std::min<uint64_t>(exponent, engine() % 255)) << 23);
        if (round % 4 == 0) c.tensors[0].view().set(0, std::ldexp(largest, round - 100));  // right at the end
        check_bytes(c);
        double most = 0;
        for (int64_t i = 0; i < 185; ++i) most = std::max(most, std::fabs(c.tensors[0].get(i)));
        const double scale = run_reference(c).front().get(0);
        CHECK(most / scale <= largest);
        CHECK((most / (scale / 2) > largest || scale == 0x1p-126));
      }
  }

  TEST_CASE("8-bit floats: scales of rows by hand") {
    const KernelCase c("to_scaled_f8", {{"to", DType::F8E4M3}, {"by", "rows"}, {"rows", 1}, {"columns", 1}},
                       {samples::values({3, 4}, {448, 1, 0, -2, 0, 0, 0, 0, 449, 3, 0.5, -448})}, 1);
    const std::vector<Tensor> made = run_reference(c);
    CHECK(all_elements(made[0].view()) == std::vector<double>{448, 1, 0, -2, 0, 0, 0, 0, 224, 1.5, 0.25, -224});
    CHECK(all_elements(made[2].view()) == std::vector<double>{1, 1, 2});
    // 3 / 2^-7 = 384 is the largest within 448, and 0.5 / 2^-9 = 256.
    CHECK(all_elements(made[1].view()) == std::vector<double>{224, 0, 224, 128, 0, 384, 0, 0, 256, -2, 0, -448});
    CHECK(all_elements(made[3].view()) == std::vector<double>{2, 0x1p-7, 0x1p-9, 1});
  }

  TEST_CASE("8-bit floats: scales of blocks and of tiles by hand") {
    // Of 128 rows of 256 numbers one is large in each of three blocks.
    SampleOperand x = samples::values({128, 256}, Floats(128 * 256, 1.0));
    x.values[3 * 256 + 5] = 448, x.values[3 * 256 + 200] = 1000, x.values[100 * 256 + 127] = -3000;
    const auto made = [&](const char* by) {
      return run_reference(
          KernelCase("to_scaled_f8", {{"to", DType::F8E4M3}, {"by", by}, {"rows", 1}, {"columns", 1}}, {x}, 1));
    };
    const auto of_one = 0x1p-8;  // 1 / 2^-8 = 256
    const std::vector<Tensor> blocks = made("blocks"), tiles = made("tiles");
    REQUIRE(blocks[2].type() == Type(DType::F32, {2, 128}));
    CHECK(blocks[2].get(3) == 1);
    CHECK(blocks[2].get(128 + 3) == 4);
    CHECK(blocks[2].get(100) == 8);
    CHECK(blocks[2].get(128 + 100) == of_one);
    REQUIRE(blocks[3].type() == Type(DType::F32, {1, 256}));
    CHECK(blocks[3].get(5) == 1);
    CHECK(blocks[3].get(127) == 8);
    CHECK(blocks[3].get(200) == 4);
    CHECK(blocks[3].get(128) == of_one);
    CHECK(blocks[0].get(3 * 256) == 1);
    CHECK(blocks[0].get(3 * 256 + 128) == 0.25);
    CHECK(blocks[1].get(5 * 128 + 3) == 448);
    CHECK(blocks[1].get(200 * 128) == 0.25);
    REQUIRE(tiles[2].type() == Type(DType::F32, {1, 4}));
    CHECK(all_elements(tiles[2].view()) == std::vector<double>{8, 4, 1, 1});
    REQUIRE(tiles[3].type() == Type(DType::F32, {2, 4}));
    CHECK(all_elements(tiles[3].view()) == std::vector<double>{8, 1, 1, 1, 4, 1, 1, 1});
    CHECK(tiles[0].get(100 * 256 + 127) == -384);  // 375, between 352 and 384
    CHECK(tiles[1].get(127 * 128 + 100) == -384);
  }

  TEST_CASE("8-bit floats: kernels give the reference's codes and scales by rows, blocks and tiles") {
    std::mt19937 engine(5);
    for (const char* by : {"rows", "blocks", "tiles"})
      for (DType to : {DType::F8E4M3, DType::F8E5M2})
        for (const Shape& shape : {Shape{2, 128, 384}, Shape{256, 128}, Shape{128, 640}}) {
          KernelCase c("to_scaled_f8", {{"to", to}, {"by", by}, {"rows", 1}, {"columns", 1}}, {samples::normal(shape)},
                       1);
          for (int64_t i = 0; i < c.tensors[0].type().elements(); ++i)
            c.tensors[0].view().as<float>()[i] = std::bit_cast<float>((static_cast<uint32_t>(engine()) & 0x807fffff) |
                                                                      static_cast<uint32_t>(engine() % 200) << 23);
          c.tensors[0].view().set(77, NAN), c.tensors[0].view().set(1000, -INFINITY);
          check_bytes(c);
        }
  }

  // Nothing is shared between rows, so that the batch may be divided in any way.
  TEST_CASE("8-bit floats: codes by rows of a part of the batch are those of the whole") {
    for (const char* by : {"rows", "blocks"}) {
      const auto codes_of = [&](const Tensor& x) {
        KernelCase c("to_scaled_f8", {{"to", DType::F8E4M3}, {"by", by}, {"rows", 1}},
                     {samples::normal(x.type().shape, DType::BF16)}, 1);
        c.tensors[0] = x;
        return all_elements(run_reference(c).front().view());
      };
      const Tensor whole = KernelCase("to_scaled_f8", {{"to", DType::F8E4M3}, {"by", by}, {"rows", 1}},
                                      {samples::normal({8, 256}, DType::BF16)}, 3)
                               .tensors[0];
      std::vector<double> joined;
      for (int64_t part = 0; part < 4; ++part) {
        const Type type(DType::BF16, {2, 256});
        llvm::append_range(joined,
                           codes_of(Tensor(type, static_cast<const std::byte*>(whole.data()) + part * type.bytes())));
      }
      CHECK(joined == codes_of(whole));
    }
  }

  TEST_CASE("8-bit floats: a product multiplies each code by its own scale") {
    std::mt19937 engine(9);
    constexpr int64_t rows = 128, inner = 256, columns = 128, block = 128;
    const auto powers = [&](const Shape& shape) {
      SampleOperand scales = samples::values(shape, Floats(static_cast<size_t>(element_count(shape))));
      for (double& scale : scales.values) scale = std::ldexp(1.0, static_cast<int>(engine() % 9) - 4);
      return scales;
    };
    struct Way {
      Shape x_shape, w_shape;
      int64_t (*x_at)(int64_t row, int64_t k), (*w_at)(int64_t column, int64_t k);
    };
    const Way ways[] = {
        {{rows}, {columns}, [](int64_t r, int64_t) { return r; }, [](int64_t c, int64_t) { return c; }},
        {{2, rows},
         {2, columns},
         [](int64_t r, int64_t k) { return k / block * rows + r; },
         [](int64_t c, int64_t k) { return k / block * columns + c; }},
        {{2, rows},
         {1, 4},
         [](int64_t r, int64_t k) { return k / block * rows + r; },
         [](int64_t, int64_t k) { return k / block; }},
    };
    for (const Way& way : ways) {
      const KernelCase c("linear_f8", {{"dtype", DType::F32}},
                         {samples::normal({rows, inner}, DType::F8E4M3),
                          samples::normal({columns, inner}, DType::F8E5M2), powers(way.x_shape), powers(way.w_shape)},
                         4);
      const Tensor y = run_reference(c).front();
      for (int64_t at : {int64_t{0}, 3 * columns + 100, rows * columns - 1}) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          const int64_t row = at / columns, column = at % columns;
          sum += c.tensors[0].get(row * inner + k) * c.tensors[2].get(way.x_at(row, k)) *
                 c.tensors[1].get(column * inner + k) * c.tensors[3].get(way.w_at(column, k));
        }
        CHECK(y.get(at) == doctest::Approx(sum).epsilon(1e-6));
      }
    }
  }
}
