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
    own.tensors.at(input.name) = filled_rows(values.tensors.at(input.name), input.type, session.rows_of_rank(0).rank);
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

// Two blocks as GPT-2 has them: packed q, k and v, a feed-forward layer, a tied embedding whose 23 rows do not divide
// by 2, and ignored labels.
inline constexpr llvm::StringLiteral packed_blocks = R"(
graph @packed(%ids: i64[4,5], %labels: i64[20]) state(
    %wte: f64[23,12] parameter trained, %scale: f64[12] parameter trained,
    %wqkv: f64[12,36] parameter trained, %bqkv: f64[36] parameter trained,
    %wo: f64[12,12] parameter trained, %bo: f64[12] parameter trained,
    %w1: f64[12,24] parameter trained, %b1: f64[24] parameter trained,
    %w2: f64[24,12] parameter trained, %b2: f64[12] parameter trained,
    %rng: i64[2] counter fill=0.0
) {
  %x = gather(%wte, %ids) {axis=0} : f64[4,5,12]
  %n, %rstd = rms_norm(%x, %scale) {axis=2, eps=0.001} : f64[4,5,12], f64[4,5,1]
  %qkv = linear(%n, %wqkv, %bqkv) : f64[4,5,36]
  %a, %lse = attention(%qkv, _, _) {causal=1, heads=6, kv_heads=6, packed=1, scale=0.7} : f64[4,5,12], f64[4,6,5]
  %o = linear(%a, %wo, %bo) : f64[4,5,12]
  %dropped = dropout(%o, %rng) {id=0, ratio=0.25} : f64[4,5,12]
  %h = add(%x, %dropped) : f64[4,5,12]
  %u = linear(%h, %w1, %b1) : f64[4,5,24]
  %g = gelu(%u) {approximate="tanh"} : f64[4,5,24]
  %d = linear(%g, %w2, %b2) : f64[4,5,12]
  %y = add(%h, %d) : f64[4,5,12]
  %logits = linear(%y, %wte) {transpose_w=1} : f64[4,5,23]
  %rows = reshape(%logits) {shape=[20,23]} : f64[20,23]
  %loss, %l, %weight = cross_entropy(%rows, %labels) {ignore_index=3, reduction="mean"} : f64[], f64[20], f64[]
  return loss=%loss
}
)";

// Grouped queries, rotary positions, a gated feed-forward layer, a table and a head of their own.
inline constexpr llvm::StringLiteral grouped_block = R"(
graph @grouped(%ids: i64[4,3], %labels: i64[12]) state(
    %table: f64[30,8] parameter trained, %wq: f64[16,8] parameter trained, %wk: f64[8,8] parameter trained,
    %wv: f64[8,8] parameter trained, %wo: f64[8,16] parameter trained, %gate: f64[24,8] parameter trained,
    %up: f64[24,8] parameter trained, %down: f64[8,24] parameter trained, %head: f64[30,8] parameter trained
) {
  %x = gather(%table, %ids) {axis=0} : f64[4,3,8]
  %cos = constant() {value=f64[1,3,1]<0x000000000000f03f000000000000e03f000000000000e0bf>} : f64[1,3,1]
  %q0 = linear(%x, %wq) {transpose_w=1} : f64[4,3,16]
  %k0 = linear(%x, %wk) {transpose_w=1} : f64[4,3,8]
  %v = linear(%x, %wv) {transpose_w=1} : f64[4,3,8]
  %q = rotary(%q0, %cos, %cos) {heads=8} : f64[4,3,16]
  %k = rotary(%k0, %cos, %cos) {heads=4} : f64[4,3,8]
  %a, %lse = attention(%q, %k, %v) {causal=1, heads=8, kv_heads=4, scale=0.7} : f64[4,3,16], f64[4,8,3]
  %o = linear(%a, %wo) {transpose_w=1} : f64[4,3,8]
  %h = add(%x, %o) : f64[4,3,8]
  %g0 = linear(%h, %gate) {transpose_w=1} : f64[4,3,24]
  %g = silu(%g0) : f64[4,3,24]
  %u = linear(%h, %up) {transpose_w=1} : f64[4,3,24]
  %m = mul(%g, %u) : f64[4,3,24]
  %d = linear(%m, %down) {transpose_w=1} : f64[4,3,8]
  %y = add(%h, %d) : f64[4,3,8]
  %logits = linear(%y, %head) {transpose_w=1} : f64[4,3,30]
  %rows = reshape(%logits) {shape=[12,30]} : f64[12,30]
  %loss, %l, %weight = cross_entropy(%rows, %labels) {reduction="mean"} : f64[], f64[12], f64[]
  return loss=%loss
}
)";

// The gradient is a sum of products of small whole numbers, which has the same bits in any order, also in bf16.
inline constexpr llvm::StringLiteral linear_loss = R"(
graph @linear_loss(%x: f32[4,64], %c: f32[4,512]) state(%w: f32[64,512] parameter trained) {
  %y = linear(%x, %w) : f32[4,512]
  %yc = mul(%y, %c) : f32[4,512]
  %loss = reduce_mean(%yc) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)";

}  // namespace plimsoll::testing
