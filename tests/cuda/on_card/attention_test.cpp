#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

#include <limits>

// Attention's kernels on rows and columns that cross their tiles, forward and backward, with what the op's own samples
// are too small for.

using namespace plimsoll;
using namespace plimsoll::testing;
using namespace plimsoll::samples;

namespace {

struct AttentionCase {
  const char* name;
  int64_t batch, rows, columns, heads, kv_heads, depth, value_depth;
  bool causal = false;
  double dropout = 0;
  SampleOperand mask = absent();
  bool packed = false;
  int64_t window = 0;
  double softcap = 0;
  bool slopes = false, sinks = false;
  int64_t document = 0;  // rows of a packed document; 0: none
  DType dtype = DType::BF16;
};

// A mask that adds `closed` to the columns of a sample outside [first, end).
SampleOperand open_between(int64_t columns, std::initializer_list<std::pair<int64_t, int64_t>> samples, double closed) {
  std::vector<double> added;
  for (const auto& [first, end] : samples)
    for (int64_t i = 0; i < columns; ++i) added.push_back(i >= first && i < end ? 0 : closed);
  return fixed(values({static_cast<int64_t>(samples.size()), 1, 1, columns}, added));
}

std::vector<AttentionCase> attention_cases() {
  constexpr double far_below = -1e30, infinity = std::numeric_limits<double>::infinity();
  SampleOperand closed_row = bools({2, 1, 70, 130});
  closed_row.fill = SampleOperand::Fill::Values;
  for (int64_t i = 0; i < 2 * 70 * 130; ++i)
    closed_row.values.push_back(i / 130 % 70 == 3 ? 0 : static_cast<double>(i * 7 % 5 != 0));
  return {
      {"causal", 2, 150, 150, 2, 2, 64, 64, true},
      {"causal, dropped, packed", 2, 150, 150, 2, 2, 64, 64, true, 0.1, absent(), true},
      {"cross, dropped, grouped", 1, 130, 200, 4, 2, 64, 64, false, 0.25},
      {"whole heads, packed", 3, 197, 197, 4, 4, 64, 64, false, 0, absent(), true},
      {"whole heads, more than blocks", 30, 199, 199, 6, 6, 32, 32},
      {"whole heads of two blocks, causal", 50, 77, 77, 7, 7, 64, 64, true, 0, absent(), true},
      {"whole heads, two tiles, padding", 3, 128, 111, 4, 4, 48, 48, false, 0, bools({3, 1, 1, 111})},
      {"whole heads of three groups, window, padding", 3, 180, 180, 4, 4, 64, 64, true, 0, bools({3, 1, 1, 180}), false,
       40},
      {"whole heads, window to both sides", 3, 208, 208, 4, 4, 64, 64, false, 0, absent(), false, 25},
      {"whole heads, rows on few columns", 3, 256, 50, 4, 4, 64, 64},
      {"short heads", 200, 50, 50, 3, 3, 64, 64, false, 0, absent(), true},
      {"short heads, causal, padding", 3, 64, 64, 4, 4, 64, 64, true, 0, bools({3, 1, 1, 64})},
      {"short heads, few rows, window", 3, 17, 61, 4, 4, 40, 40, false, 0, absent(), false, 9},
      {"few rows of 8-byte words", 5, 48, 48, 3, 3, 196, 196},
      {"few rows, packed, dropped", 3, 64, 64, 3, 3, 252, 252, false, 0.2, absent(), true},
      {"few rows of any elements, causal, in f16", 3, 49, 49, 3, 3, 225, 225, true, 0, absent(), false, 0, 0, false,
       false, 0, DType::F16},
      {"few rows, whole words, grouped", 3, 17, 61, 4, 2, 256, 256},
      {"few rows, padding, dropped", 3, 33, 50, 2, 2, 160, 160, false, 0.1, bools({3, 1, 1, 50})},
      {"few rows, a sample that is closed whole by numbers", 2, 30, 64, 2, 2, 136, 136, false, 0,
       open_between(64, {{0, 0}, {7, 9}}, far_below)},
      {"few rows, bias per head, window, slopes", 2, 60, 60, 2, 2, 132, 132, false, 0, fixed(normal({1, 2, 60, 60})),
       false, 20, 0, true},
      {"few rows, capped, sinks, causal", 2, 50, 50, 2, 2, 200, 200, true, 0, absent(), false, 0, 2, false, true},
      {"few rows of short heads", 3, 40, 56, 3, 3, 36, 36},
      {"few rows of an odd head, one row", 3, 1, 64, 2, 2, 13, 13},
      {"padding, dropped", 3, 128, 128, 2, 2, 64, 64, false, 0.1, bools({3, 1, 1, 128})},
      {"padding, odd lengths", 2, 70, 130, 2, 2, 64, 64, false, 0, bools({2, 1, 1, 130})},
      {"causal and padding", 2, 130, 130, 4, 1, 128, 128, true, 0, bools({2, 1, 1, 130})},
      {"padding of whole tiles", 3, 200, 330, 2, 2, 64, 64, false, 0,
       open_between(330, {{0, 330}, {0, 130}, {0, 5}}, -infinity)},
      {"padding of whole tiles by numbers, dropped", 3, 200, 330, 4, 2, 128, 128, false, 0.1,
       open_between(330, {{0, 64}, {200, 330}, {100, 200}}, far_below)},
      {"a sample that is closed whole by numbers", 2, 130, 330, 2, 2, 64, 64, false, 0,
       open_between(330, {{0, 0}, {70, 90}}, far_below)},
      {"a sample that is closed whole", 2, 130, 330, 2, 1, 64, 64, false, 0.1,
       open_between(330, {{0, 0}, {70, 90}}, -infinity)},
      {"causal, padding on the left by numbers", 2, 300, 300, 2, 2, 64, 64, true, 0,
       open_between(300, {{150, 300}, {0, 300}}, far_below)},
      {"causal, padding on the left", 2, 300, 300, 2, 2, 64, 64, true, 0.1,
       open_between(300, {{150, 300}, {0, 140}}, -infinity)},
      {"window, padding by numbers", 2, 300, 300, 2, 2, 64, 64, false, 0,
       open_between(300, {{0, 64}, {128, 300}}, far_below), false, 40},
      {"short heads, padding of whole tiles", 2, 200, 330, 2, 2, 32, 32, false, 0.1,
       open_between(330, {{0, 100}, {130, 330}}, -infinity)},
      {"long heads, padding of whole tiles", 2, 130, 330, 2, 1, 256, 256, false, 0,
       open_between(330, {{0, 100}, {130, 330}}, far_below)},
      {"closed rows", 2, 70, 130, 2, 2, 32, 32, false, 0, closed_row},
      {"bias per head", 2, 100, 100, 2, 2, 64, 64, false, 0, fixed(normal({1, 2, 100, 100}))},
      {"bias per head in 16 bits, dropped", 2, 100, 100, 2, 2, 64, 64, false, 0.3,
       fixed(normal({1, 2, 100, 100}, DType::BF16))},
      {"windows", 6, 49, 49, 3, 3, 32, 32, false, 0, fixed(normal({1, 3, 49, 49})), true},
      {"more windows than blocks", 700, 13, 13, 2, 2, 16, 16, false, 0, fixed(normal({1, 2, 13, 13}))},
      {"more windows than blocks, causal, odd rows", 400, 5, 13, 3, 3, 8, 8, true, 0},
      {"windows with their own masks", 6, 49, 49, 3, 3, 32, 32, false, 0, fixed(normal({6, 1, 49, 49}))},
      {"small windows, causal, closed columns", 40, 16, 24, 2, 2, 16, 16, true, 0, bools({1, 1, 1, 24})},
      {"windows to the brim, one mask for all heads", 9, 64, 64, 2, 2, 24, 24, false, 0, fixed(normal({1, 1, 64, 64}))},
      {"bias of odd rows", 2, 193, 191, 2, 2, 64, 64, false, 0.1, fixed(normal({1, 2, 193, 191}))},
      {"bias of whole tiles, long heads", 1, 256, 192, 2, 1, 128, 128, false, 0.2,
       fixed(normal({1, 2, 256, 192}, DType::BF16))},
      {"bias of samples and heads in 16 bits, causal, dropped", 2, 130, 136, 2, 2, 64, 64, true, 0.1,
       fixed(normal({2, 2, 130, 136}, DType::BF16))},
      {"bias per head in 16 bits, causal, grouped", 2, 330, 264, 4, 2, 64, 64, true, 0,
       fixed(normal({1, 4, 330, 264}, DType::BF16))},
      {"bias per head, more columns than rows, dropped", 3, 200, 420, 4, 1, 64, 40, true, 0.1,
       fixed(normal({1, 4, 200, 420}))},
      {"bias of samples and heads in 16 bits, packed", 2, 200, 200, 3, 3, 48, 48, false, 0,
       fixed(normal({2, 3, 200, 200}, DType::BF16)), true},
      {"bias of samples and heads, odd rows", 2, 70, 131, 2, 1, 96, 96, false, 0, fixed(normal({2, 2, 70, 131}))},
      {"bias of samples, rows beyond the window", 3, 300, 100, 2, 2, 64, 64, false, 0, fixed(normal({3, 1, 300, 100})),
       false, 20},
      {"one bias for all, packed, long heads", 3, 80, 80, 2, 2, 256, 256, true, 0.2, fixed(normal({1, 1, 80, 80})),
       true},
      {"more blocks of rows than at a time, padding, dropped", 34, 260, 260, 3, 3, 64, 64, false, 0.1,
       bools({34, 1, 1, 260}), true},
      {"more blocks of rows than at a time, samples of any length", 36, 200, 200, 3, 3, 64, 64, false, 0,
       open_between(200, {{0, 200}, {0, 0},   {0, 130}, {0, 5}, {64, 128}, {0, 64},  {0, 65},  {70, 90}, {0, 200},
                          {0, 1},   {0, 127}, {0, 128}, {0, 0}, {0, 129},  {0, 191}, {0, 192}, {0, 193}, {190, 200},
                          {0, 200}, {0, 0},   {0, 130}, {0, 5}, {64, 128}, {0, 64},  {0, 65},  {70, 90}, {0, 200},
                          {0, 1},   {0, 127}, {0, 128}, {0, 0}, {0, 129},  {0, 191}, {0, 192}, {0, 193}, {190, 200}},
                    -infinity)},
      {"more blocks of rows than at a time, heads of 128, causal", 18, 260, 260, 8, 2, 128, 128, true},
      {"more blocks of rows than at a time, heads of 128, dropped", 14, 260, 200, 4, 4, 128, 128, false, 0.1},
      {"more blocks of rows than at a time, heads of 256, dropped", 10, 260, 200, 5, 1, 256, 256, true, 0.1},
      {"more blocks of rows than at a time, a bias per head", 34, 200, 200, 3, 3, 64, 64, false, 0.1,
       fixed(normal({1, 3, 200, 200}))},
      {"more blocks of rows than at a time, a bias of samples and heads in 16 bits", 34, 200, 200, 3, 3, 64, 64, true,
       0.1, fixed(normal({34, 3, 200, 200}, DType::BF16))},
      {"more heads than one block's sums of y and dy", 1, 37, 70, 40, 8, 64, 64},
      {"causal, many tiles", 1, 600, 600, 4, 2, 128, 128, true, 0.1},
      {"windows, dropped", 6, 49, 49, 3, 3, 32, 32, false, 0.2, fixed(normal({1, 3, 49, 49}))},
      {"bias of columns", 2, 140, 90, 2, 2, 80, 80, false, 0.2, fixed(normal({2, 1, 1, 90}))},
      {"long heads", 1, 70, 150, 4, 2, 256, 256, true, 0.2},
      {"long heads, padding", 1, 70, 70, 2, 2, 192, 128, false, 0, bools({1, 1, 1, 70})},
      {"odd heads", 2, 70, 70, 2, 1, 20, 36, false, 0.4},
      {"sliding window, dropped", 1, 300, 300, 2, 1, 64, 64, true, 0.1, absent(), false, 40},
      {"window to both sides", 2, 200, 200, 2, 2, 32, 32, false, 0, bools({2, 1, 1, 200}), false, 17},
      {"rows beyond the window", 1, 300, 100, 2, 2, 64, 64, false, 0, absent(), false, 20},
      {"short heads", 2, 65, 129, 2, 2, 16, 16, false, 0.1},
      {"heads of 128, causal, grouped", 2, 330, 330, 6, 2, 128, 128, true},
      {"heads of 128, dropped, packed", 2, 150, 150, 2, 2, 128, 128, true, 0.1, absent(), true},
      {"heads of 128, cross, grouped", 1, 130, 400, 4, 2, 128, 128, false, 0.25},
      {"heads of 128, causal, more rows than columns", 1, 330, 140, 2, 1, 128, 128, true},
      {"heads of 128, causal, more columns than rows", 1, 140, 330, 2, 2, 128, 128, true, 0.1},
      {"heads of 128, sliding window, dropped", 1, 460, 460, 4, 2, 128, 128, true, 0.1, absent(), false, 140},
      {"heads of 128, window to both sides", 2, 330, 330, 2, 2, 128, 128, false, 0, bools({2, 1, 1, 330}), false, 17},
      {"heads of 128, rows beyond the window", 1, 400, 100, 2, 2, 128, 128, false, 0, absent(), false, 20},
      {"heads of 128, a sample that is closed whole", 2, 130, 330, 2, 1, 128, 128, false, 0.1,
       open_between(330, {{0, 0}, {70, 90}}, -infinity)},
      {"heads of 96 and values of 72", 2, 200, 200, 4, 2, 96, 72, true, 0.1},
      {"heads of 72 and values of 128", 1, 140, 200, 2, 2, 72, 128},
      {"heads of 256, causal, grouped", 1, 330, 330, 6, 2, 256, 256, true},
      {"heads of 256, cross, dropped", 1, 130, 400, 4, 2, 256, 256, false, 0.25},
      {"heads of 256, sliding window, dropped", 1, 300, 300, 4, 1, 256, 256, true, 0.1, absent(), false, 140},
      {"heads of 256, eight on one", 1, 200, 260, 8, 1, 256, 192, false, 0.1},
      {"heads of 128, eight on one, causal", 1, 330, 330, 8, 1, 128, 128, true},
      {"heads of 64, six on one, sliding window, packed", 1, 330, 330, 6, 1, 64, 64, true, 0.1, absent(), true, 90},
      {"heads of 192 and values of 256", 2, 140, 200, 2, 2, 192, 256, false, 0, bools({2, 1, 1, 200})},
      {"heads of 256 and values of 96", 1, 200, 140, 2, 2, 256, 96, true, 0.1},
      {.name = "capped",
       .batch = 2,
       .rows = 150,
       .columns = 150,
       .heads = 4,
       .kv_heads = 2,
       .depth = 64,
       .value_depth = 64,
       .causal = true,
       .softcap = 1.5},
      {.name = "capped, padding, dropped",
       .batch = 3,
       .rows = 130,
       .columns = 130,
       .heads = 2,
       .kv_heads = 2,
       .depth = 128,
       .value_depth = 128,
       .dropout = 0.1,
       .mask = bools({3, 1, 1, 130}),
       .softcap = 1},
      {.name = "capped, causal, heads of 128, grouped",
       .batch = 2,
       .rows = 330,
       .columns = 330,
       .heads = 4,
       .kv_heads = 2,
       .depth = 128,
       .value_depth = 128,
       .causal = true,
       .window = 200,
       .softcap = 1.5},
      {.name = "capped, dropped, f16, heads of 128",
       .batch = 1,
       .rows = 200,
       .columns = 300,
       .heads = 2,
       .kv_heads = 2,
       .depth = 128,
       .value_depth = 128,
       .dropout = 0.2,
       .mask = fixed(normal({1, 1, 1, 300}, DType::F16)),
       .softcap = 1,
       .dtype = DType::F16},
      {.name = "capped, dropped, f16, heads of 256",
       .batch = 1,
       .rows = 200,
       .columns = 300,
       .heads = 4,
       .kv_heads = 2,
       .depth = 256,
       .value_depth = 256,
       .dropout = 0.2,
       .mask = fixed(normal({1, 1, 1, 300}, DType::F16)),
       .window = 150,
       .softcap = 1,
       .dtype = DType::F16},
      {.name = "f16, causal, heads of 128",
       .batch = 1,
       .rows = 300,
       .columns = 300,
       .heads = 4,
       .kv_heads = 1,
       .depth = 128,
       .value_depth = 128,
       .causal = true,
       .dropout = 0.1,
       .dtype = DType::F16},
      {.name = "f16, causal",
       .batch = 1,
       .rows = 200,
       .columns = 200,
       .heads = 2,
       .kv_heads = 2,
       .depth = 64,
       .value_depth = 64,
       .causal = true,
       .softcap = 2,
       .dtype = DType::F16},
      {.name = "capped, a bias of columns, short heads",
       .batch = 2,
       .rows = 140,
       .columns = 90,
       .heads = 2,
       .kv_heads = 2,
       .depth = 32,
       .value_depth = 32,
       .mask = fixed(normal({2, 1, 1, 90})),
       .softcap = 1},
      {.name = "capped, a bias of rows",
       .batch = 2,
       .rows = 100,
       .columns = 100,
       .heads = 2,
       .kv_heads = 2,
       .depth = 64,
       .value_depth = 64,
       .mask = fixed(normal({1, 2, 100, 100})),
       .softcap = 1},
      {.name = "capped, closed rows, a window",
       .batch = 2,
       .rows = 70,
       .columns = 130,
       .heads = 2,
       .kv_heads = 2,
       .depth = 64,
       .value_depth = 64,
       .mask = closed_row,
       .window = 50,
       .softcap = 1},
      {.name = "capped, long heads",
       .batch = 1,
       .rows = 200,
       .columns = 200,
       .heads = 4,
       .kv_heads = 2,
       .depth = 256,
       .value_depth = 256,
       .causal = true,
       .softcap = 1},
      {.name = "capped and slanted",
       .batch = 1,
       .rows = 130,
       .columns = 130,
       .heads = 2,
       .kv_heads = 1,
       .depth = 64,
       .value_depth = 64,
       .causal = true,
       .softcap = 2,
       .slopes = true},
      {.name = "slanted",
       .batch = 2,
       .rows = 150,
       .columns = 150,
       .heads = 4,
       .kv_heads = 4,
       .depth = 64,
       .value_depth = 64,
       .causal = true,
       .packed = true,
       .slopes = true},
      {.name = "slanted to both sides, dropped",
       .batch = 2,
       .rows = 140,
       .columns = 90,
       .heads = 2,
       .kv_heads = 2,
       .depth = 128,
       .value_depth = 128,
       .dropout = 0.2,
       .slopes = true},
      {.name = "slanted, padding, short heads",
       .batch = 2,
       .rows = 70,
       .columns = 70,
       .heads = 2,
       .kv_heads = 2,
       .depth = 16,
       .value_depth = 16,
       .causal = true,
       .mask = bools({2, 1, 1, 70}),
       .slopes = true},
      {.name = "slanted windows",
       .batch = 6,
       .rows = 49,
       .columns = 49,
       .heads = 3,
       .kv_heads = 3,
       .depth = 32,
       .value_depth = 32,
       .slopes = true},
      {.name = "windows at an image's edges",
       .batch = 6,
       .rows = 49,
       .columns = 49,
       .heads = 3,
       .kv_heads = 3,
       .depth = 32,
       .value_depth = 32,
       .mask = fixed(normal({1, 3, 49, 49})),
       .packed = true,
       .document = 20},
      {.name = "more windows than blocks, some of one segment",
       .batch = 700,
       .rows = 13,
       .columns = 13,
       .heads = 2,
       .kv_heads = 2,
       .depth = 16,
       .value_depth = 16,
       .mask = fixed(normal({1, 2, 13, 13})),
       .document = 6},
      {.name = "windows to the brim, segments",
       .batch = 300,
       .rows = 64,
       .columns = 64,
       .heads = 4,
       .kv_heads = 4,
       .depth = 32,
       .value_depth = 32,
       .document = 30},
      {.name = "sinks",
       .batch = 2,
       .rows = 150,
       .columns = 150,
       .heads = 4,
       .kv_heads = 2,
       .depth = 64,
       .value_depth = 64,
       .causal = true,
       .window = 40,
       .sinks = true},
      {.name = "sinks, dropped, closed rows",
       .batch = 2,
       .rows = 70,
       .columns = 130,
       .heads = 2,
       .kv_heads = 2,
       .depth = 128,
       .value_depth = 128,
       .dropout = 0.1,
       .mask = closed_row,
       .sinks = true},
      {.name = "sinks, short heads",
       .batch = 2,
       .rows = 49,
       .columns = 49,
       .heads = 3,
       .kv_heads = 3,
       .depth = 32,
       .value_depth = 32,
       .sinks = true},
      {.name = "documents",
       .batch = 2,
       .rows = 300,
       .columns = 300,
       .heads = 4,
       .kv_heads = 2,
       .depth = 64,
       .value_depth = 64,
       .causal = true,
       .document = 70},
      {.name = "documents of whole tiles, dropped",
       .batch = 1,
       .rows = 256,
       .columns = 256,
       .heads = 2,
       .kv_heads = 2,
       .depth = 128,
       .value_depth = 128,
       .causal = true,
       .dropout = 0.1,
       .document = 64},
      {.name = "documents, both sides, a bias",
       .batch = 2,
       .rows = 200,
       .columns = 200,
       .heads = 2,
       .kv_heads = 2,
       .depth = 64,
       .value_depth = 64,
       .mask = fixed(normal({1, 2, 200, 200})),
       .document = 90},
      {.name = "documents, short heads",
       .batch = 2,
       .rows = 130,
       .columns = 130,
       .heads = 2,
       .kv_heads = 2,
       .depth = 32,
       .value_depth = 32,
       .causal = true,
       .document = 33},
      {.name = "documents, capped, slanted, long heads",
       .batch = 1,
       .rows = 130,
       .columns = 130,
       .heads = 2,
       .kv_heads = 1,
       .depth = 192,
       .value_depth = 128,
       .causal = true,
       .softcap = 1,
       .slopes = true,
       .sinks = true,
       .document = 50},
  };
}

Attrs attrs_of(const AttentionCase& c) {
  Attrs attrs{{"heads", c.heads}, {"kv_heads", c.kv_heads}, {"scale", 1 / std::sqrt(static_cast<double>(c.depth))}};
  attrs.set("causal", int64_t{c.causal});
  attrs.set("packed", int64_t{c.packed});
  attrs.set("window", c.window);
  attrs.set("softcap", c.softcap);
  if (c.dropout > 0) {
    attrs.set("dropout", c.dropout);
    attrs.set("id", int64_t{11});
    attrs.set("first_draw", int64_t{160});
  }
  return attrs;
}

std::vector<SampleOperand> inputs_of(const AttentionCase& c) {
  if (c.packed) return {normal({c.batch, c.rows, (c.heads + 2 * c.kv_heads) * c.depth}, c.dtype), absent(), absent()};
  return {normal({c.batch, c.rows, c.heads * c.depth}, c.dtype),
          normal({c.batch, c.columns, c.kv_heads * c.depth}, c.dtype),
          normal({c.batch, c.columns, c.kv_heads * c.value_depth}, c.dtype)};
}

// The operands from the mask to the segments. Documents of one sample begin elsewhere than another's, and the last of
// each has the number of its first: segments need not be neighbours.
std::vector<SampleOperand> masks_of(const AttentionCase& c) {
  std::vector<SampleOperand> made{c.mask, c.dropout > 0 ? values({2}, {5, 3}, DType::I64) : absent(), absent(),
                                  absent()};
  if (c.slopes) {
    std::vector<double> slopes;
    for (int64_t h = 0; h < c.heads; ++h) slopes.push_back(std::exp2(-static_cast<double>(h + 3)));
    made[2] = values({c.heads}, slopes);
  }
  if (c.document > 0) {
    std::vector<double> numbers;
    for (int64_t i = 0; i < c.batch * c.rows; ++i) {
      const int64_t number = (i % c.rows + i / c.rows * 11) / c.document;
      numbers.push_back(static_cast<double>(number * c.document + c.document > c.rows ? 0 : number));
    }
    made[3] = values({c.batch, c.rows}, numbers, DType::I64);
  }
  return made;
}

SampleOperand sinks_of(const AttentionCase& c) { return c.sinks ? normal({c.heads}) : absent(); }

void check_all_kernels(const KernelCase& c) {
  const CudaCatalog catalog(card_under_test(), /*any_order=*/true);
  const std::vector<Tensor> wanted = run_reference(c);
  for (const KernelCandidate& kernel : candidates_of(catalog, c)) {
    INFO("kernel ", kernel.name);
    if (kernel.name != "reference") check_results(c, CaseOnCard(c, kernel, {}).run(c), wanted);
  }
}

// A kernel gives the same bits every time.
void check_bits(const KernelCase& c) {
  for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), c)) {
    if (kernel.name == "reference" || kernel.name == "flash") continue;
    INFO("kernel ", kernel.name);
    const std::vector<Tensor> first = CaseOnCard(c, kernel, {}).run(c);
    for (int run = 0; run < 3; ++run) {
      const std::vector<Tensor> again = CaseOnCard(c, kernel, {}).run(c);
      for (size_t i = 0; i < first.size(); ++i)
        CHECK(std::memcmp(first[i].data(), again[i].data(), static_cast<size_t>(first[i].type().bytes())) == 0);
    }
  }
}

// Backward gets what the reference's forward gave.
KernelCase gradient_of(const KernelCase& forward, const AttentionCase& c) {
  const std::vector<Tensor> results = run_reference(forward);
  std::vector<SampleOperand> operands = inputs_of(c);
  for (const Tensor& result : results) operands.push_back(filled(SampleOperand::Fill::Normal, {}, result.type().dtype));
  for (size_t i = 0; i < 2; ++i) operands[3 + i].type = results[i].type();
  SampleOperand dy = operands[3];
  operands.push_back(dy);
  llvm::append_range(operands, masks_of(c));
  KernelCase grad("attention_grad", attrs_of(c), operands, 7);
  for (size_t i = 0; i < 3; ++i) grad.tensors[i] = forward.tensors[i];
  for (size_t i = 0; i < 2; ++i) grad.tensors[3 + i] = results[i];
  if (forward.present[3]) grad.tensors[6] = forward.tensors[3];
  return grad;
}

bool is_whole_float(const SampleOperand& mask, const AttentionCase& c) {
  return mask.fill == SampleOperand::Fill::Normal && mask.type.shape[2] == c.rows && mask.type.shape[3] == c.columns;
}

// Whether each element of a tensor is 0.
std::vector<bool> zeros_of(const Tensor& tensor) {
  std::vector<bool> zeros;
  for (int64_t i = 0; i < tensor.type().elements(); ++i) zeros.push_back(tensor.get(i) == 0);
  return zeros;
}

}  // namespace

TEST_CASE("attention's kernels agree with the reference where rows and columns cross tiles") {
  for (const AttentionCase& c : attention_cases()) {
    INFO(c.name);
    std::vector<SampleOperand> operands = inputs_of(c);
    llvm::append_range(operands, masks_of(c));
    operands.push_back(sinks_of(c));
    const KernelCase forward("attention", attrs_of(c), operands, 3);
    check_all_kernels(forward);
    const KernelCase grad = gradient_of(forward, c);
    check_all_kernels(grad);
    if (c.sinks) {
      KernelCase sinks_grad("attention_sinks_grad", {}, {}, 1);
      sinks_grad.tensors = {grad.tensors[3], grad.tensors[4], grad.tensors[5], forward.tensors.back()};
      sinks_grad.present.assign(4, true);
      check_all_kernels(sinks_grad);
    }
    if (!is_whole_float(c.mask, c)) continue;
    for (const char* op : {"attention_mask_grad", "attention_grad_with_mask"}) {
      KernelCase mask_grad(op, attrs_of(c), {}, 1);
      mask_grad.tensors = grad.tensors;
      mask_grad.present = grad.present;
      check_all_kernels(mask_grad);
    }
  }
}

// Such a row is uniform: beside the mask its scores are below rounding. It passes no gradient.
TEST_CASE("rows that a mask of large finite numbers closes are the mean of their values on the card") {
  constexpr double closed = -0x1p99;
  for (int64_t depth : {32, 64, 96, 128})
    for (int64_t rows : {49, 150})
      for (bool has_rows : {false, true}) {
        CAPTURE(depth);
        CAPTURE(rows);
        CAPTURE(has_rows);
        const int64_t mask_rows = has_rows ? rows : 1;
        std::vector<double> mask;
        for (int64_t i = 0; i < 2 * mask_rows * rows; ++i) {
          const bool is_whole = has_rows ? i / rows % 7 == 3 : i / rows == 1;
          mask.push_back(is_whole || i % rows > rows / 2 ? closed : 0);
        }
        const AttentionCase c{"closed by large numbers",
                              2,
                              rows,
                              rows,
                              2,
                              2,
                              depth,
                              depth,
                              false,
                              0,
                              values({2, 1, mask_rows, rows}, mask)};
        std::vector<SampleOperand> operands = inputs_of(c);
        llvm::append_range(operands, masks_of(c));
        operands.push_back(absent());
        const KernelCase forward("attention", attrs_of(c), operands, 3);
        check_all_kernels(forward);
        check_all_kernels(gradient_of(forward, c));
      }
}

// Few enough for a sanitizer: blocks that take turns, the diagonal, rows beyond the last, dropout, two query heads a
// key head.
TEST_CASE("a few tiles of attention's gradient in one pass agree with the reference") {
  for (int64_t depth : {64, 128, 256}) {
    CAPTURE(depth);
    const AttentionCase c{"few tiles", 1, 200, 200, 4, 2, depth, depth, true, 0.1};
    std::vector<SampleOperand> operands = inputs_of(c);
    llvm::append_range(operands, masks_of(c));
    operands.push_back(absent());
    const KernelCase grad = gradient_of(KernelCase("attention", attrs_of(c), operands, 3), c);
    const std::vector<Tensor> wanted = run_reference(grad);
    for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), grad))
      if (kernel.name == "one_pass") check_results(grad, CaseOnCard(grad, kernel, {}).run(grad), wanted);
  }
}

// So many heads that a block takes columns after columns, some of which meet no row: those behind the diagonal, and
// tiles that a mask closes.
TEST_CASE("attention's gradient in one pass agrees with that of two launches where blocks take columns after columns") {
  constexpr double closed = -std::numeric_limits<double>::infinity();
  for (bool causal : {false, true})
    for (double dropout : {0.0, 0.1}) {
      CAPTURE(causal);
      CAPTURE(dropout);
      AttentionCase c{"many heads", 4, 200, 300, 64, 32, 64, 64, causal, dropout};
      c.mask = open_between(c.columns, {{0, 300}, {0, 100}, {140, 300}, {60, 270}}, closed);
      std::vector<SampleOperand> operands = inputs_of(c);
      const SampleOperand y = normal({c.batch, c.rows, c.heads * c.depth}, DType::BF16);
      operands.insert(operands.end(), {y, normal({c.batch, c.heads, c.rows}), y});
      llvm::append_range(operands, masks_of(c));
      const KernelCase grad("attention_grad", attrs_of(c), operands, 5);
      std::vector<Tensor> wanted;
      for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), grad))
        if (kernel.name == "mma") wanted = CaseOnCard(grad, kernel, {}).run(grad);
      for (const KernelCandidate& kernel : candidates_of(CudaCatalog(card_under_test()), grad))
        if (kernel.name == "one_pass") check_results(grad, CaseOnCard(grad, kernel, {}).run(grad), wanted);
    }
}

// Blocks take turns at sums in memory, in heads enough for every multiprocessor to have several.
TEST_CASE("the gradient of attention has the same bits every time") {
  for (bool causal : {false, true})
    for (int64_t depth : {64, 128, 256}) {
      CAPTURE(causal);
      CAPTURE(depth);
      AttentionCase c{"many heads", 4, 700, 700, 32, 8, depth, depth, causal, 0.1};
      std::vector<SampleOperand> operands = inputs_of(c);
      const SampleOperand y = normal({c.batch, c.rows, c.heads * depth}, DType::BF16);
      operands.insert(operands.end(), {y, normal({c.batch, c.heads, c.rows}), y});
      llvm::append_range(operands, masks_of(c));
      check_bits(KernelCase("attention_grad", attrs_of(c), operands, 5));
    }
}

TEST_CASE("the gradient of attention of few rows has the same bits every time") {
  for (int64_t depth : {196, 225, 256}) {
    CAPTURE(depth);
    const AttentionCase c{"many heads of few rows", 64, 48, 48, 8, 8, depth, depth};
    std::vector<SampleOperand> operands = inputs_of(c);
    const SampleOperand y = normal({c.batch, c.rows, c.heads * c.depth}, DType::BF16);
    operands.insert(operands.end(), {y, normal({c.batch, c.heads, c.rows}), y});
    llvm::append_range(operands, masks_of(c));
    check_bits(KernelCase("attention_grad", attrs_of(c), operands, 5));
  }
}

TEST_CASE("the gradient of attention of whole heads has the same bits every time") {
  for (int64_t rows : {50, 77, 150, 197}) {
    CAPTURE(rows);
    const AttentionCase c{"many short heads", 64, rows, rows, 12, 12, 64, 64};
    std::vector<SampleOperand> operands = inputs_of(c);
    const SampleOperand y = normal({c.batch, c.rows, c.heads * c.depth}, DType::BF16);
    operands.insert(operands.end(), {y, normal({c.batch, c.heads, c.rows}), y});
    llvm::append_range(operands, masks_of(c));
    check_bits(KernelCase("attention_grad", attrs_of(c), operands, 5));
  }
}

TEST_CASE("the gradient of attention with that of its mask has the same bits every time") {
  for (bool causal : {false, true}) {
    CAPTURE(causal);
    AttentionCase c{"bias of heads", 8, 500, 500, 12, 12, 64, 64, causal, 0.1};
    c.mask = normal({1, c.heads, c.rows, c.columns});
    std::vector<SampleOperand> operands = inputs_of(c);
    const SampleOperand y = normal({c.batch, c.rows, c.heads * c.depth}, DType::BF16);
    operands.insert(operands.end(), {y, normal({c.batch, c.heads, c.rows}), y});
    llvm::append_range(operands, masks_of(c));
    check_bits(KernelCase("attention_grad_with_mask", attrs_of(c), operands, 5));
  }
}

// With equal scores and values that are the columns of the identity, y shows which probabilities were kept.
TEST_CASE("attention's dropout keeps the same probabilities on the card as in the record") {
  constexpr int64_t rows = 75;
  for (int64_t columns : {64, 90, 96, 200}) {
    CAPTURE(columns);
    Attrs attrs{{"heads", int64_t{3}}, {"kv_heads", int64_t{1}}, {"scale", 1.0}};
    attrs.set("dropout", 0.4);
    attrs.set("id", int64_t{7});
    std::vector<double> identity(static_cast<size_t>(columns * columns), 0.0);
    for (int64_t i = 0; i < columns; ++i) identity[static_cast<size_t>(i * columns + i)] = 1;
    const SampleOperand nothing = values({1, rows, 3 * 8}, std::vector<double>(rows * 24, 0.0), DType::BF16);
    const std::vector<double> no_keys(static_cast<size_t>(columns * 8), 0.0);
    const KernelCase c(
        "attention", attrs,
        {nothing, values({1, columns, 8}, no_keys, DType::BF16), values({1, columns, columns}, identity, DType::BF16),
         absent(), values({2}, {5, 3}, DType::I64)},
        1);
    const CudaCatalog catalog(card_under_test(), /*any_order=*/true);
    const std::vector<Tensor> wanted = run_reference(c);
    for (const KernelCandidate& kernel : candidates_of(catalog, c)) {
      if (kernel.name == "reference") continue;
      INFO("kernel ", kernel.name);
      CHECK(zeros_of(CaseOnCard(c, kernel, {}).run(c).front()) == zeros_of(wanted.front()));
    }
  }
}
