#pragma once

// Trains small graphs on random values in a poisoned arena.

#include "ir/machine/device.h"
#include "ir/text.h"
#include "tests/support/one_batch.h"

#include "doctest/doctest.h"

namespace plimsoll::testing {

// The model has attention, two dropouts, and an embedding that shares its matrix with the logits. Some labels are
// ignored, so chunks of the batch have different weights.
inline constexpr llvm::StringLiteral tied_attention = R"(
graph @tied_attention(%ids: i64[4,3], %labels: i64[4,3]) state(%w: f64[9,8] parameter trained, %a: f64[8,24] parameter trained, %b: f64[24] parameter trained, %s: f64[8] parameter trained, %rng: i64[2] counter fill=0.0) {
  %e = gather(%w, %ids) {axis=0} : f64[4,3,8]
  %d = dropout(%e, %rng) {id=0, ratio=0.3} : f64[4,3,8]
  %n, %mean, %rstd = layer_norm(%d, %s) {axis=2, eps=0.001} : f64[4,3,8], f64[4,3,1], f64[4,3,1]
  %qkv = linear(%n, %a, %b) : f64[4,3,24]
  %y, %lse = attention(%qkv, _, _, _, %rng) {causal=1, dropout=0.2, heads=2, id=1, kv_heads=2, packed=1, scale=0.5} : f64[4,3,8], f64[4,2,3]
  %r = add(%y, %d) : f64[4,3,8]
  %g = gelu(%r) {approximate="tanh"} : f64[4,3,8]
  %z = linear(%g, %w) {transpose_w=1} : f64[4,3,9]
  %rows = reshape(%z) {shape=[12,9]} : f64[12,9]
  %flat = reshape(%labels) {shape=[12]} : i64[12]
  %loss, %row_lse, %weight = cross_entropy(%rows, %flat) {ignore_index=-100, label_smoothing=0.1, reduction="mean"} : f64[], f64[12], f64[]
  return loss=%loss
}
)";

inline Graph parsed(llvm::StringRef text) {
  Result<Graph> graph = parse_graph(text);
  REQUIRE_MESSAGE(bool(graph), llvm::toString(graph.takeError()));
  return std::move(*graph);
}

inline DeviceDescription cpu_device() {
  Result<DeviceCatalog> catalog = DeviceCatalog::builtin();
  REQUIRE(bool(catalog));
  Result<DeviceDescription> device = catalog->find("cpu");
  REQUIRE(bool(device));
  return *device;
}

inline Status initialise(Session& session, const RandomValues& values) {
  return session.initialise(
      [&](llvm::StringRef name, const TensorView& into) {
        const Tensor& tensor = values.tensors.at(name.str());
        for (int64_t i = 0; i < into.elements(); ++i) into.set(i, tensor.get(i));
        return Status::success();
      },
      1);
}

// The losses of a rank that reads its rows of the values.
inline std::vector<double> losses_of(Session& session, const RandomValues& values, int steps) {
  llvm::cantFail(initialise(session, values));
  RandomValues own = values;
  for (const InputSpec& input : session.inputs()) {
    if (input.whole) continue;
    const Tensor& whole = values.tensors.at(input.name);
    own.tensors.at(input.name) =
        Tensor(input.type, static_cast<const char*>(whole.data()) + session.rows_of_rank(0).rank * input.type.bytes());
  }
  OneBatch data(own, session.inputs());
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(llvm::cantFail(session.step(data)).loss);
  return losses;
}

inline std::unique_ptr<Session> started(Plan plan, const RandomValues& values) {
  ExecutorOptions options;
  options.poison = true;
  Result<std::unique_ptr<Session>> session = Session::create(std::move(plan), options);
  REQUIRE_MESSAGE(bool(session), llvm::toString(session.takeError()));
  REQUIRE_FALSE(bool(initialise(**session, values)));
  return std::move(*session);
}

}  // namespace plimsoll::testing
