#include "runtime/packed_weights.h"

#include "ir/evaluate.h"
#include "ir/op_def.h"
#include "ir/quantized_numbers.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/data/read_pieces.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <limits>

// Codes and scales to the bit, and training over weights that are stored so.

namespace plimsoll {
namespace {

using namespace testing;

// x[i] = f32((i * 2654435761 mod 2^32) / 2^32 * 2 - 1) * 0.1f
Tensor test_weight(int64_t rows, int64_t columns) {
  Tensor x(Type(DType::F32, {rows, columns}));
  for (int64_t i = 0; i < rows * columns; ++i) {
    const double unit = static_cast<double>(static_cast<uint32_t>(static_cast<uint64_t>(i) * 2654435761U)) * 0x1p-32;
    x.view().as<float>()[i] = static_cast<float>(unit * 2 - 1) * 0.1F;
  }
  return x;
}

std::string hex(const Tensor& tensor, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", tensor.view().as<uint8_t>()[i]);
    text += two;
  }
  return text;
}

std::string float_bits(const Tensor& tensor, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, tensor.view().as<float>() + i, sizeof bits);
    char eight[10];
    std::snprintf(eight, sizeof eight, "%s%08x", i ? " " : "", bits);
    text += eight;
  }
  return text;
}

PackedWeight nf4_weight(int64_t rows, int64_t columns, bool double_quantised) {
  PackedWeight weight;
  weight.source = "w", weight.scales = "w.absmax", weight.format = "nf4", weight.block = 64;
  weight.shape = {rows, columns};
  const int64_t count = rows * columns, blocks = (count + 63) / 64;
  weight.codes_type = Type(DType::U8, {(count + 1) / 2, 1});
  weight.scales_type = Type(double_quantised ? DType::U8 : DType::F32, {blocks});
  if (!double_quantised) return weight;
  weight.scale_scales = "w.nested_absmax", weight.offset = "w.nested_offset";
  weight.scale_scales_type = Type(DType::F32, {(blocks + 255) / 256});
  return weight;
}

Packed packed_of(const PackedWeight& weight, const Tensor& numbers) {
  std::vector<FloatBuffer> buffers(static_cast<size_t>(reading_threads()));
  Packed packed;
  packed.codes = Tensor(weight.codes_type);
  llvm::cantFail(pack(weight, numbers.view(), buffers, packed.codes.view(), packed));
  return packed;
}

Tensor unpacked(const PackedWeight& weight, const Packed& packed, DType dtype = DType::F32) {
  Attrs attrs{{"format", weight.format},
              {"block", weight.block},
              {"shape", Ints(weight.shape.begin(), weight.shape.end())},
              {"dtype", dtype}};
  std::vector<const Tensor*> parts{&packed.codes, &packed.scales};
  if (!weight.scale_scales.empty()) parts.insert(parts.end(), {&packed.scale_scales, &packed.offset});
  return std::move(llvm::cantFail(evaluate_node(get_op("dequantize"), attrs, parts)).front());
}

double relative_error(const Tensor& got, const Tensor& want) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < want.type().elements(); ++i) {
    difference += (got.get(i) - want.get(i)) * (got.get(i) - want.get(i));
    size += want.get(i) * want.get(i);
  }
  return std::sqrt(difference / size);
}

TEST_SUITE("unit") {
  TEST_CASE("packed weights: the map of 8-bit codes") {
    const std::array<float, 256>&map = dynamic_map(true), &above = dynamic_map(false);
    CHECK(map[0] == -0.99296874F);
    CHECK(map[127] == 0);
    CHECK(map[254] == 0.99296874F);
    CHECK(map[255] == 1);
    CHECK(above[0] == 0);
    CHECK(above[254] == 0.9964844F);
    CHECK(above[255] == 1);
    CHECK(std::is_sorted(map.begin(), map.end()));
    // Thresholds of 4-bit codes lie in the middle between neighbours.
    for (size_t i = 0; i < 15; ++i) {
      CHECK(nf4_thresholds()[i] == (nf4_values()[i] + nf4_values()[i + 1]) / 2);
      CHECK(int4_thresholds()[i] == doctest::Approx((int4_values()[i] + int4_values()[i + 1]) / 2));
    }
    CHECK(int4_values()[1] == -1);
    CHECK(int4_values()[8] == 0);
    CHECK(int4_values()[15] == 1);
  }

  TEST_CASE("packed weights: codes and scales are bitsandbytes' own") {
    const PackedWeight single = nf4_weight(256, 128, false), nested = nf4_weight(256, 128, true);
    const Packed packed = packed_of(single, test_weight(256, 128));
    CHECK(hex(packed.codes, 16) == "0a2e61c3f91d50b3e71c4f92e60b3e81");
    CHECK(float_bits(packed.scales, 4) == "3dcccccd 3dcabde9 3dcb871f 3dcc0397");
    const Packed twice = packed_of(nested, test_weight(256, 128));
    CHECK(twice.codes == packed.codes);
    CHECK(float_bits(twice.offset, 1) == "3dcb0d75");
    CHECK(float_bits(twice.scale_scales, 2) == "3aa40ac0 3aa50c80");
    CHECK(hex(twice.scales, 16) == "e83ec5d231da0db36ae036cd00ca39e3");
  }

  TEST_CASE("packed weights: a transposed weight is turned before its blocks are cut") {
    PackedWeight turned = nf4_weight(128, 64, false);
    turned.transposed = true;
    Tensor stored = test_weight(64, 128), straight(Type(DType::F32, {128, 64}));
    for (int64_t r = 0; r < 64; ++r)
      for (int64_t c = 0; c < 128; ++c) straight.view().set(c * 64 + r, stored.get(r * 128 + c));
    CHECK(turned.model_type() == stored.type());
    CHECK(packed_of(turned, stored).codes == packed_of(nf4_weight(128, 64, false), straight).codes);
  }

  // 600 rows are three or four pieces, the last of them shorter. With 1087 columns it ends within a block of 64, as
  // rows do, and pieces that are turned have a multiple of 64 rows.
  TEST_CASE("packed weights: pieces have the codes and scales of the whole") {
    for (int64_t columns : {1087, 1088})
      for (llvm::StringRef format : {"nf4", "int4", "int8", "fp8"}) {
        const bool has_4_bits = format == "nf4" || format == "int4";
        PackedWeight weight = nf4_weight(600, columns, format == "nf4");
        weight.format = format.str();
        if (!has_4_bits) {
          weight.block = columns, weight.scales_type = Type(DType::F32, {600});
          weight.codes_type = Type(format == "int8" ? DType::I8 : DType::F8E4M3, {600, columns});
        }
        const Tensor numbers = test_weight(600, columns);
        const Packed packed = packed_of(weight, numbers);
        for (int64_t row : {0, 250, 599}) {  // by themselves
          PackedWeight alone = nf4_weight(1, columns, false);
          alone.format = weight.format;
          if (!has_4_bits)
            alone.block = columns, alone.scales_type = Type(DType::F32, {1}),
            alone.codes_type = Type(weight.codes_type.dtype, {1, columns});
          else if (columns == 1087 && row > 0)
            continue;  // its blocks begin in other rows
          const int64_t bytes =
              has_4_bits ? columns / 2 / 32 * 32 : columns;  // a last shorter block has another row's numbers
          const Packed one =
              packed_of(alone, Tensor(Type(DType::F32, {1, columns}), numbers.view().as<float>() + row * columns));
          const char* const codes = packed.codes.view().as<char>() + row * alone.codes_type.bytes();
          CHECK(std::memcmp(codes, one.codes.data(), static_cast<size_t>(bytes)) == 0);
        }
        PackedWeight turned = weight;
        turned.transposed = true;
        Tensor stored(turned.model_type());
        for (int64_t r = 0; r < 600; ++r)
          for (int64_t c = 0; c < columns; ++c)
            stored.view().as<float>()[c * 600 + r] = numbers.view().as<float>()[r * columns + c];
        const Packed same = packed_of(turned, stored);
        CHECK(same.codes == packed.codes);
        CHECK(same.scales == packed.scales);
        if (format == "nf4") CHECK(same.scale_scales == packed.scale_scales);
      }
  }

  TEST_CASE("packed weights: rows of zeros, and numbers that are none") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    PackedWeight weight{.source = "w", .scales = "w.scales", .format = "fp8", .block = 64, .shape = {3, 64}};
    weight.codes_type = Type(DType::F8E4M3, {3, 64}), weight.scales_type = Type(DType::F32, {3});
    Tensor numbers(Type(DType::F32, {3, 64}));
    for (int64_t i = 0; i < 64; ++i)
      numbers.view().set(i, -0.0), numbers.view().set(64 + i, i == 5 ? nan : i == 7 ? -4.48 : 0);
    for (int64_t i = 128; i < 192; ++i) numbers.view().set(i, i % 2 == 0 ? nan : -0.0);
    const Packed packed = packed_of(weight, numbers);
    CHECK(float_bits(packed.scales, 3) == "00000000 3c23d70a 00000000");
    CHECK(hex(packed.codes, 2) == "0000");
    CHECK(packed.codes.view().as<uint8_t>()[64 + 5] == 0x7f);
    CHECK(packed.codes.view().as<uint8_t>()[64 + 7] == 0xfe);
    CHECK(hex(Tensor(Type(DType::U8, {64}), packed.codes.view().as<uint8_t>() + 128), 2) == "0000");
  }

  TEST_CASE("packed weights: odd sizes, blocks of zeros, and what the formats lose") {
    Tensor odd = test_weight(3, 67);  // 201 numbers: 4 blocks, the last of 9
    for (int64_t i = 0; i < 64; ++i) odd.view().set(i, 0);
    const PackedWeight weight = nf4_weight(3, 67, false);
    const Packed packed = packed_of(weight, odd);
    CHECK(packed.codes.type() == Type(DType::U8, {101, 1}));
    CHECK(packed.codes.get_int(0) == 0x77);
    CHECK(packed.codes.get_int(100) % 16 == 0);
    const Tensor back = unpacked(weight, packed);
    for (int64_t i = 0; i < 64; ++i) CHECK(back.get(i) == 0);

    RandomValues values;
    values.add_for(parsed("graph @g(%x: f32[64,512]) {\n  return %x\n}\n"));
    const Tensor& normal = values.tensors.at("x");
    PackedWeight rows = nf4_weight(64, 512, true);
    CHECK(relative_error(unpacked(rows, packed_of(rows, normal)), normal) == doctest::Approx(0.092).epsilon(0.02));
    PackedWeight whole = nf4_weight(64, 512, false);
    whole.format = "int4";
    CHECK(relative_error(unpacked(whole, packed_of(whole, normal)), normal) == doctest::Approx(0.1).epsilon(0.1));
    Tensor sevenths(Type(DType::F32, {1, 64}));
    for (int64_t i = 0; i < 64; ++i) sevenths.view().set(i, static_cast<double>(i % 15) - 7);
    const PackedWeight row = [&] {
      PackedWeight made = nf4_weight(1, 64, false);
      made.format = "int4";
      return made;
    }();
    CHECK(unpacked(row, packed_of(row, sevenths)) == sevenths);
    rows.scale_scales.clear(), rows.offset.clear();
    rows.block = 512, rows.scales_type = Type(DType::F32, {64});
    rows.format = "int8", rows.codes_type = Type(DType::I8, {64, 512});
    CHECK(relative_error(unpacked(rows, packed_of(rows, normal)), normal) < 0.009);
    rows.format = "fp8", rows.codes_type = Type(DType::F8E4M3, {64, 512});
    CHECK(relative_error(unpacked(rows, packed_of(rows, normal)), normal) == doctest::Approx(0.0264).epsilon(0.03));
  }

  // 448 in each row makes the scale 1. Halves between codes, numbers below the smallest code, and both zeros.
  TEST_CASE("packed weights: 8-bit floats are rounded as tensors round them") {
    constexpr int64_t columns = 4096;
    PackedWeight weight{.source = "w", .scales = "w.scales", .format = "fp8", .block = columns, .shape = {2, columns}};
    weight.codes_type = Type(DType::F8E4M3, {2, columns}), weight.scales_type = Type(DType::F32, {2});
    Tensor numbers(Type(DType::F32, {2, columns})), want(weight.codes_type);
    for (int64_t i = 0; i < 2 * columns; ++i) {
      const double size =
          i % columns < 256 ? static_cast<double>(i % 256) * 0x1p-11 : std::ldexp(128 + i % 128, i / 128 % 16 - 14);
      numbers.view().set(i, i % columns == 0 ? 448 : std::min(size, 448.0) * (i % 3 == 0 ? -1 : 1));
      want.view().set(i, numbers.get(i));
    }
    CHECK(packed_of(weight, numbers).codes == want);
  }
}

// Two layers whose weights are stored in both orders, and a head that stays as it is.
constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[6,64], %labels: i64[6]) state(%a.weight: f32[96,64] parameter trained, %b.weight: f32[96,80] parameter trained, %head.weight: f32[5,80] parameter trained, %bias: f32[5] parameter trained) {
  %h = linear(%x, %a.weight) {transpose_w=1} : f32[6,96]
  %g = gelu(%h) {approximate="none"} : f32[6,96]
  %m = linear(%g, %b.weight) : f32[6,80]
  %n = gelu(%m) {approximate="none"} : f32[6,80]
  %y = linear(%n, %head.weight, %bias) {transpose_w=1} : f32[6,5]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[6], f32[]
  return loss=%loss
}
)";

TrainingRequest over(WeightFormat format, const std::string& precision) {
  TrainingRequest request;
  request.adapters.rank = 4;
  request.quantize.format = format;
  request.precision = precision;
  return request;
}

Plan planned(const TrainingRequest& request) {
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

// The losses of three steps; codes and scales are random as well.
std::vector<double> losses_on_ranks(const TrainingRequest& request) {
  const ForwardModel forward = forward_of(parsed(model), request);
  Result<Program> program = make_program(forward, {}, request);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  RandomValues values;
  values.add_for(forward_of(parsed(model), over(WeightFormat::NF4, "exported")).graph);
  RankTrainer trainer(std::move(*program), request.mesh, values);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) losses.push_back(trainer.step(1).front());
  return losses;
}

TEST_SUITE("e2e") {
  TEST_CASE("packed weights: ranks train as one rank does, also with pieces of the codes") {
    const std::vector<double> alone = losses_on_ranks(over(WeightFormat::NF4, "exported"));
    CHECK(alone[2] < alone[0]);
    for (int zero : {0, 1, 3}) {
      TrainingRequest request = over(WeightFormat::NF4, "exported");
      request.mesh[MeshAxis::Data] = 2;
      request.zero = zero;
      const std::vector<double> together = losses_on_ranks(request);
      for (size_t i = 0; i < alone.size(); ++i) CHECK(together[i] == doctest::Approx(alone[i]).epsilon(1e-5));
    }
  }

  TEST_CASE("packed weights: within a budget the 16-bit copies are made again") {
    // Eight layers of 128 x 128. A 16-bit copy is 32 KiB, and backward reads those of all layers but the first.
    std::string text = "graph @deep(%x: f32[6,128], %labels: i64[6]) state(";
    for (int i = 0; i < 8; ++i) text += "%w" + std::to_string(i) + ": f32[128,128] parameter trained, ";
    text += "%head: f32[5,128] parameter trained) {\n";
    for (int i = 0; i < 8; ++i)
      text += "  %h" + std::to_string(i) + " = linear(" + (i ? "%h" + std::to_string(i - 1) : "%x") + ", %w" +
              std::to_string(i) + ") {transpose_w=1} : f32[6,128]\n";
    text +=
        "  %y = linear(%h7, %head) {transpose_w=1} : f32[6,5]\n  %loss, %l, %weight = cross_entropy(%y, %labels) "
        "{reduction=\"mean\"} : f32[], f32[6], f32[]\n  return loss=%loss\n}\n";
    TrainingRequest request = over(WeightFormat::NF4, "bf16");
    request.offload = false;
    request.split = 1;
    CpuCatalog catalog;
    const auto plan_deep = [&] {
      Result<Plan> plan = fitting_plan(compile_training(parsed(text), request, cpu_device(), catalog));
      REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
      return std::move(*plan);
    };
    const auto dequantizes = [](const Plan& plan) {
      return llvm::count_if(plan.functions.front().instructions,
                            [](const Instruction& each) { return each.op == "dequantize"; });
    };
    const Plan plain = plan_deep();
    CHECK(dequantizes(plain) == 8);
    request.budget_bytes = plain.promised_bytes() - 5 * 32768 - 4096;
    const Plan tight = plan_deep();
    CHECK(dequantizes(tight) >= 8 + 5);
    RandomValues values;
    values.add_for(parsed(text));
    CHECK(losses_of(*started(tight, values), values, 3) == losses_of(*started(plain, values), values, 3));
  }

  TEST_CASE("packed weights: a step over them is one over the numbers they stand for") {
    RandomValues values;
    values.add_for(parsed(model));
    // With magnitudes (DoRA), which start as norms of the numbers that the codes stand for.
    const auto request_of = [](WeightFormat format, const std::string& precision, bool dora) {
      TrainingRequest request = over(format, precision);
      request.adapters.dora = dora;
      return request;
    };
    for (const auto& [precision, dora] :
         {std::pair<std::string, bool>("exported", false), {"bf16", false}, {"exported", true}, {"bf16", true}})
      for (WeightFormat format :
           {WeightFormat::NF4, WeightFormat::NF4Single, WeightFormat::Int4, WeightFormat::Int8, WeightFormat::FP8}) {
        const Plan plan = planned(request_of(format, precision, dora));
        const std::vector<PackedWeight> weights = packed_weights_of(plan);
        REQUIRE(weights.size() == 2);
        CHECK(weights[0].source == "a.weight");
        CHECK_FALSE(weights[0].transposed);
        CHECK(weights[1].transposed);
        const std::vector<double> packed = losses_of(*started(plan, values), values, 3);
        RandomValues rounded = values;
        for (const PackedWeight& weight : weights) {
          const Tensor back = unpacked(weight, packed_of(weight, values.tensors.at(weight.source)));
          Tensor& stored = rounded.tensors.at(weight.source);
          const int64_t rows = weight.shape[0], columns = weight.shape[1];
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < columns; ++c)
              stored.view().set(weight.transposed ? c * rows + r : r * columns + c, back.get(r * columns + c));
        }
        const Plan plain = planned(request_of(WeightFormat::AsTrained, precision, dora));
        const std::vector<double> want = losses_of(*started(plain, rounded), rounded, 3);
        for (size_t i = 0; i < want.size(); ++i)
          CHECK(packed[i] == doctest::Approx(want[i]).epsilon(precision == "bf16" ? 1e-3 : 1e-6));
        CHECK(packed[2] < packed[0]);
      }
  }

  TEST_CASE("packed weights: each weight is asked for once") {
    RandomValues values;
    values.add_for(parsed(model));
    const Plan plan = planned(over(WeightFormat::NF4, "exported"));
    std::unique_ptr<Session> session = started(plan, values);
    std::map<std::string, int> asked;
    llvm::cantFail(session->initialise(
        [&](llvm::StringRef name, const TensorView& into) {
          ++asked[name.str()];
          for (int64_t i = 0; i < into.elements(); ++i) into.set(i, values.tensors.at(name.str()).get(i));
          return Status::success();
        },
        0));
    for (const PackedWeight& weight : packed_weights_of(plan)) CHECK(asked.at(weight.source) == 1);
  }

  TEST_CASE("packed weights: ranges of a weight make what the whole makes") {
    RandomValues values;
    values.add_for(parsed(model));
    for (WeightFormat format : {WeightFormat::NF4, WeightFormat::Int8}) {
      const Plan plan = planned(over(format, "exported"));
      const auto load = [&](llvm::StringRef name, const TensorView& into) {
        for (int64_t i = 0; i < into.elements(); ++i) into.set(i, values.tensors.at(name.str()).get(i));
        return Status::success();
      };
      std::atomic<int> ranges = 0;
      const auto load_range = [&](llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into) {
        ++ranges;
        CHECK(whole == values.tensors.at(name.str()).type());
        for (int64_t i = 0; i < into.elements(); ++i) into.set(i, values.tensors.at(name.str()).get(first + i));
        return Status::success();
      };
      std::unique_ptr<Session> whole = started(plan, values), in_ranges = started(plan, values);
      llvm::cantFail(whole->initialise(load, 0));
      llvm::cantFail(in_ranges->initialise(load, 0, load_range));
      CHECK(ranges > 0);
      for (const PackedWeight& weight : packed_weights_of(plan))
        for (const std::string& name : {weight.source, weight.scales}) {
          Tensor want;
          llvm::cantFail(whole->read_state(name, [&](const TensorView& bytes) {
            want = Tensor(bytes.type, bytes.data);
            return Status::success();
          }));
          llvm::cantFail(in_ranges->read_state(name, [&](const TensorView& bytes) {
            CHECK(Tensor(bytes.type, bytes.data) == want);
            return Status::success();
          }));
        }
    }
  }

  TEST_CASE("packed weights: codes of a file go through unchanged") {
    RandomValues values;
    values.add_for(parsed(model));
    const Plan plan = planned(over(WeightFormat::NF4, "exported"));
    std::map<std::string, Tensor> file;
    for (const PackedWeight& weight : packed_weights_of(plan)) {
      Packed packed = packed_of(weight, values.tensors.at(weight.source));
      packed.codes.view().as<uint8_t>()[0] = 0xff;  // no block has two largest numbers here
      file[weight.source] = std::move(packed.codes);
      file[weight.scales] = std::move(packed.scales);
      file[weight.scale_scales] = std::move(packed.scale_scales);
      file[weight.offset] = std::move(packed.offset);
    }
    std::unique_ptr<Session> session = started(plan, values);
    llvm::cantFail(session->initialise(
        [&](llvm::StringRef name, const TensorView& into) {
          const auto found = file.find(name.str());
          const Tensor& from = found == file.end() ? values.tensors.at(name.str()) : found->second;
          for (int64_t i = 0; i < into.elements(); ++i)
            is_float(from.type().dtype) ? into.set(i, from.get(i)) : into.set_int(i, from.get_int(i));
          return Status::success();
        },
        0, nullptr,
        [&](llvm::StringRef name) -> std::optional<Type> {
          const auto found = file.find(name.str());
          return found == file.end() ? std::nullopt : std::optional<Type>(found->second.type());
        }));
    llvm::cantFail(session->read_state("a.weight", [&](const TensorView& codes) {
      CHECK(Tensor(codes.type, codes.data) == file.at("a.weight"));
      return Status::success();
    }));
  }
}

}  // namespace
}  // namespace plimsoll
