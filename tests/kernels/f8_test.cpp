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
}
