#include "passes/place/place_parts.h"

#include "passes/lower_to_plan.h"
#include "tests/support/compiled_plans.h"

#include "ir/plan/check.h"

#include <doctest/doctest.h>

// Values of 64 floats have 256 bytes, to which offsets are aligned.

namespace plimsoll {
namespace {

using namespace testing;

// "%p in %x at 0" for each part in place, in the order of values.
std::string parts_of(llvm::StringRef text, int64_t alignment = 256) {
  Graph graph = parsed(text);
  const std::vector<NodeId> writers = make_updates_writable(graph);
  const BufferAssignment assigned = assign_buffers(graph, writers, {}, CpuCatalog());
  std::vector<int64_t> state_offset(graph.value_count(), -1);
  int64_t end = 0;
  for (const auto& states : joined_states(graph, alignment))
    for (ValueId state : states) state_offset[index_of(state)] = end, end += graph.type(state).bytes();
  const PlacedParts parts = place_parts(graph, assigned, {alignment, assigned.instructions, state_offset});
  const auto peak = [&](llvm::ArrayRef<Buffer> buffers) {
    std::vector<int64_t> live(static_cast<size_t>(assigned.instructions) + 1);
    for (const Buffer& buffer : buffers)
      for (int32_t at = buffer.first; buffer.kind == Buffer::Kind::Transient && at <= buffer.last; ++at)
        live[static_cast<size_t>(at)] += buffer.bytes;
    return *std::max_element(live.begin(), live.end());
  };
  CHECK(peak(parts.buffers) <= peak(assigned.buffers));
  std::string all;
  for (size_t v = 0; v < graph.value_count(); ++v) {
    const int32_t buffer = assigned.buffer_of[v];
    if (buffer < 0 || parts.of[buffer].buffer < 0) continue;
    const auto [outermost, begin] = parts.outermost(buffer);
    const ValueId whole = parts.of[buffer].whole;
    all +=
        (all.empty() ? "%" : ", %") + graph.value(static_cast<ValueId>(v)).name +
        (whole == ValueId::None ? " over states" : " in %" + graph.value(whole).name + " at " + std::to_string(begin));
  }
  return all;
}

TEST_SUITE("unit") {
  TEST_CASE("results of a split lie in its operand, with what is written over them") {
    CHECK(parts_of(R"(graph @g(%x: f32[128]) {
  %h = exp(%x) : f32[128]
  %p, %q = split(%h) {axis=0, sizes=[64,64]} : f32[64], f32[64]
  %e = exp(%p) : f32[64]
  %f = tanh(%q) : f32[64]
  %y = concat(%e, %f) {axis=0} : f32[128]
  return %y
})") == "%p in %h at 0, %q in %h at 256, %e in %h at 0, %f in %h at 256");
  }

  TEST_CASE("operands of a concatenation lie in its result, and may be read behind it") {
    CHECK(parts_of(R"(graph @g(%x: f32[8,8]) {
  %a = exp(%x) : f32[8,8]
  %b = tanh(%x) : f32[8,8]
  %y = concat(%a, %b) {axis=0} : f32[16,8]
  %d = matmul(%a, %x) : f32[8,8]
  return %y, %d
})") == "%a in %y at 0, %b in %y at 256");
  }

  TEST_CASE("what is written over behind a concatenation that is still read is copied") {
    CHECK(parts_of(R"(graph @g(%x: f32[8,8]) {
  %a = exp(%x) : f32[8,8]
  %b = tanh(%x) : f32[8,8]
  %y = concat(%a, %b) {axis=0} : f32[16,8]
  %c = matmul(%a, %x) : f32[8,8]
  %d = exp(%a) : f32[8,8]
  return %y, %c, %d
})") == "%b in %y at 256");
  }

  TEST_CASE("a value lies in one whole, once") {
    CHECK(parts_of(R"(graph @g(%x: f32[8,8]) {
  %a = exp(%x) : f32[8,8]
  %y = concat(%a, %a) {axis=0} : f32[16,8]
  %z = concat(%x, %a) {axis=0} : f32[16,8]
  return %y, %z
})") == "%a in %y at 0");
  }

  TEST_CASE("parts that are no runs of their whole, or are not aligned, are copied") {
    CHECK(parts_of(R"(graph @g(%x: f32[64,2]) {
  %p, %q = split(%x) {axis=1, sizes=[1,1]} : f32[64,1], f32[64,1]
  %r, %s = split(%x) {axis=0, sizes=[48,16]} : f32[48,2], f32[16,2]
  return %p, %q, %r, %s
})") == "%r in %x at 0");
    CHECK(parts_of(R"(graph @g(%x: f32[2,64]) {
  %p = slice(%x) {sizes=[1,64], starts=[1,0], steps=[1,1]} : f32[1,64]
  %q = slice(%x) {sizes=[2,32], starts=[0,0], steps=[1,1]} : f32[2,32]
  %r = slice(%x) {sizes=[2,64], starts=[1,0], steps=[-1,1]} : f32[2,64]
  return %p, %q, %r
})") == "%p in %x at 256");
  }

  TEST_CASE("parts of parts") {
    CHECK(parts_of(R"(graph @g(%x: f32[256]) {
  %p, %q = split(%x) {axis=0, sizes=[128,128]} : f32[128], f32[128]
  %r, %s = split(%q) {axis=0, sizes=[64,64]} : f32[64], f32[64]
  return %p, %r, %s
})") == "%p in %x at 0, %q in %x at 512, %r in %q at 512, %s in %q at 768");
  }

  // The whole would live beside %m from %a on: 256 bytes for %a and 512 of its own are more than what is live later.
  TEST_CASE("a part that was written long ago is copied where its whole would raise the peak") {
    CHECK(parts_of(R"(graph @g(%x: f32[8,8]) {
  %a = exp(%x) : f32[8,8]
  %l = concat(%x, %x, %x, %x) {axis=0} : f32[32,8]
  %m = matmul(%l, %x) : f32[32,8]
  %n = matmul(%x, %x) : f32[8,8]
  %b = tanh(%n) : f32[8,8]
  %y = concat(%a, %b) {axis=0} : f32[16,8]
  return %y
})") == "%n in %y at 256, %b in %y at 256");
  }

  TEST_CASE("a concatenation of states lies over them until one of them changes") {
    CHECK(parts_of(R"(graph @g(%x: f32[8,8]) state(%v: f32[8,8] parameter trained, %w: f32[8,8] parameter trained) {
  %a = concat(%w, %v) {axis=0} : f32[16,8]
  %b = concat(%v, %w) {axis=0} : f32[16,8]
  %h = matmul(%a, %x) : f32[16,8]
  %next = neg(%v) : f32[8,8] phase=update
  update %v = %next
  return %h, %b
})") == "%a over states");
    CHECK(parts_of(R"(graph @g(%x: f32[8,8]) state(%v: f32[8,8] parameter trained, %w: f32[8,8] parameter trained) {
  %a = concat(%w, %v) {axis=0} : f32[16,8]
  %next = neg(%v) : f32[8,8] phase=update
  %h = matmul(%a, %x) : f32[16,8]
  update %v = %next
  return %h
})") == "");
  }

  TEST_CASE("a part of a state is copied where the state changes while it is read") {
    CHECK(parts_of(R"(graph @g(%x: f32[8,8]) state(%w: f32[16,8] parameter trained) {
  %p, %q = split(%w) {axis=0, sizes=[8,8]} : f32[8,8], f32[8,8]
  %h = matmul(%x, %p) : f32[8,8]
  %next = neg(%w) : f32[16,8] phase=update
  %k = matmul(%x, %q) : f32[8,8]
  update %w = %next
  return %h, %k
})") == "%p in %w at 0");
  }
}

}  // namespace
}  // namespace plimsoll
