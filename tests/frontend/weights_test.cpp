#include "frontend/api/weights.h"

#include "frontend/api/save_states.h"
#include "ir/plan/summary.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/data/safetensors.h"
#include "tests/support/small_training.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

#include <cstring>
#include <mutex>

// Weights in another float type than the file's: converted a few at a time, and saved with the file's digits.

namespace plimsoll {
namespace {

using namespace testing;

struct Folder {
  llvm::SmallString<128> path;
  Folder() { REQUIRE_FALSE(bool(llvm::sys::fs::createUniqueDirectory("plimsoll-weights", path))); }
  ~Folder() { llvm::sys::fs::remove_directories(path); }
  std::string file(const char* name) const { return (path + "/" + name).str(); }
};

void write_file(const std::string& path, const std::map<std::string, Tensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.type(), 0});
  llvm::cantFail(write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) {
    std::memcpy(out, tensors.at(entry.name).data(), static_cast<size_t>(entry.type.bytes()));
    return Status::success();
  }));
}

// The frozen layer is two thirds of the model.
constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[4,6], %labels: i64[4]) state(%w1: f32[6,8] parameter trained, %b1: f32[8] parameter trained, %w2: f32[3,8] parameter trained) {
  %h = linear(%x, %w1, %b1) {transpose_w=0} : f32[4,8]
  %g = gelu(%h) {approximate="none"} : f32[4,8]
  %y = linear(%g, %w2) {transpose_w=1} : f32[4,3]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)";

Plan planned(const std::vector<std::string>& train) {
  TrainingRequest request;
  request.precision = "bf16";
  request.train = train;
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

int64_t parameter_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlanState& state : plan.states)
    if (state.role == StateRole::Parameter) bytes += plan.slots[static_cast<size_t>(state.slot)].type.bytes();
  return bytes;
}

TEST_SUITE("unit") {
  TEST_CASE("weights: conversion reads no more than a few elements at once") {
    const int64_t count = 3 * elements_converted_at_once + 17, first = 5;
    Tensor into(Type(DType::BF16, {count}));
    std::mutex guard;  // several threads read
    std::map<int64_t, int64_t> parts;
    llvm::cantFail(read_converted(DType::F32, first, into.view(), [&](int64_t at, const TensorView& part) {
      const std::lock_guard lock(guard);
      CHECK(part.type.dtype == DType::F32);
      parts[at] = part.elements();
      for (int64_t i = 0; i < part.elements(); ++i) part.as<float>()[i] = static_cast<float>(at + i) / 3;
      return Status::success();
    }));
    int64_t next = first;
    for (const auto& [at, elements] : parts) {
      CHECK(at == next);
      CHECK(elements <= elements_converted_at_once);
      next += elements;
    }
    CHECK(next == first + count);
    for (int64_t i : {int64_t{0}, elements_converted_at_once - 1, elements_converted_at_once, count - 1})
      CHECK(into.view().as<uint16_t>()[i] == to_bf16(static_cast<float>(first + i) / 3));
  }

  TEST_CASE("weights: a file's floats become those of the plan, and nothing else does") {
    const Folder folder;
    const std::string path = folder.file("w.safetensors");
    write_file(path,
               {{"w", Tensor::of_floats({1, 1.001, -2.5, 3}, DType::F32, {2, 2})}, {"n", Tensor::of_ints({1, 2})}});
    const Weights weights = llvm::cantFail(open_weights(path));
    CHECK(*weights.type_of("w") == Type(DType::F32, {2, 2}));
    CHECK_FALSE(weights.type_of("v"));
    Tensor narrow(Type(DType::BF16, {2, 2})), wide(Type(DType::F64, {2, 2})), piece(Type(DType::BF16, {2}));
    llvm::cantFail(weights.load("w", narrow.view()));
    CHECK(narrow.get(1) == 1);
    CHECK(narrow.get(2) == -2.5);
    llvm::cantFail(weights.load("w", wide.view()));
    CHECK(wide.get(1) == static_cast<double>(1.001F));
    llvm::cantFail(weights.load_range("w", narrow.type(), 2, piece.view()));
    CHECK(piece.get(0) == -2.5);
    const auto refused = [&](llvm::StringRef name, const Type& type) {
      Tensor into(type);
      return llvm::toString(weights.load(name, into.view()));
    };
    CHECK(llvm::StringRef(refused("w", Type(DType::BF16, {4})))
              .contains("weight 'w' is f32[2,2], the plan needs bf16[4]"));
    CHECK(llvm::StringRef(refused("n", Type(DType::F32, {2}))).contains("weight 'n' is i64[2], the plan needs f32[2]"));
    CHECK(llvm::StringRef(refused("v", Type(DType::F32, {2}))).contains("has no weight 'v'"));
  }
}

TEST_SUITE("e2e") {
  TEST_CASE("weights: frozen layers take half the bytes, and are saved with all digits") {
    // 48, 8 and 24 numbers. The bias is read by the 16-bit product too.
    constexpr int64_t copy = 2;  // trained ones have a 16-bit copy besides
    CHECK(parameter_bytes(planned({})) == (4 + copy) * (48 + 8 + 24));
    const Plan plan = planned({"w2"});
    CHECK(parameter_bytes(plan) == 2 * (48 + 8) + (4 + copy) * 24);

    RandomValues values;
    values.add_for(parsed(model));
    const Folder folder;
    const std::string first = folder.file("first.safetensors"), last = folder.file("last.safetensors");
    write_file(first,
               {{"w1", values.tensors.at("w1")}, {"b1", values.tensors.at("b1")}, {"w2", values.tensors.at("w2")}});
    std::unique_ptr<Session> session = started(plan, values);
    const Weights weights = llvm::cantFail(open_weights(first));
    llvm::cantFail(session->initialise(weights.load, 0, weights.load_range));
    OneBatch data(values, session->inputs());
    llvm::cantFail(session->step(data));
    const auto saved = [&](const std::string& name) {
      const SafetensorsFile file = llvm::cantFail(SafetensorsFile::open(last));
      Tensor tensor(file.find(name)->type);
      llvm::cantFail(file.read(*file.find(name), tensor.data()));
      return tensor;
    };
    llvm::cantFail(save_states(*session, last, {"", first}));
    CHECK(saved("w1") == values.tensors.at("w1"));
    CHECK_FALSE(saved("w2") == values.tensors.at("w2"));
    // Without the file, or with one that the weights did not come from, what the plan has is saved.
    llvm::cantFail(save_states(*session, last, {}));
    CHECK(saved("w1").type() == Type(DType::BF16, {6, 8}));
    write_file(first, {{"w1", Tensor(Type(DType::F32, {6, 8}))}});
    llvm::cantFail(save_states(*session, last, {"", first}));
    CHECK(saved("w1").get(0) ==
          static_cast<double>(from_bf16(to_bf16(static_cast<float>(values.tensors.at("w1").get(0))))));
  }
}

}  // namespace
}  // namespace plimsoll
