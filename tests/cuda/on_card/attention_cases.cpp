#include "tests/cuda/on_card/attention_cases.h"

#include <limits>

namespace plimsoll::testing {

using namespace plimsoll::samples;

SampleOperand open_between(int64_t columns, std::initializer_list<std::pair<int64_t, int64_t>> samples, double closed) {
  std::vector<double> added;
  for (const auto& [first, end] : samples)
    for (int64_t i = 0; i < columns; ++i) added.push_back(i >= first && i < end ? 0 : closed);
  return fixed(values({static_cast<int64_t>(samples.size()), 1, 1, columns}, added));
}

// By head, so much more for each column: as ALiBi adds them where columns ahead of the row are closed.
static std::vector<double> growing_numbers(int64_t columns, std::initializer_list<double> of_heads) {
  std::vector<double> added;
  for (const double number : of_heads)
    for (int64_t i = 0; i < columns; ++i) added.push_back(number * static_cast<double>(i));
  return added;
}

SampleOperand closed_row() {
  SampleOperand open = bools({2, 1, 70, 130});
  open.fill = SampleOperand::Fill::Values;
  for (int64_t i = 0; i < 2 * 70 * 130; ++i)
    open.values.push_back(i / 130 % 70 == 3 ? 0 : static_cast<double>(i * 7 % 5 != 0));
  return open;
}

std::vector<AttentionCase> attention_cases() {
  constexpr double far_below = -1e30, infinity = std::numeric_limits<double>::infinity();
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
      {"whole heads, a window that leaves rows without columns", 3, 250, 120, 4, 4, 64, 64, false, 0, absent(), false,
       20},
      {"whole heads, a narrow window, one row in the last tile", 3, 65, 129, 4, 4, 64, 64, false, 0, absent(), false,
       2},
      {"whole heads, a window, few rows in the last tile", 3, 150, 200, 4, 4, 64, 64, false, 0, absent(), false, 20},
      {"short heads", 200, 50, 50, 3, 3, 64, 64, false, 0, absent(), true},
      {"short heads, causal, padding", 3, 64, 64, 4, 4, 64, 64, true, 0, bools({3, 1, 1, 64})},
      {"short heads, few rows, window", 3, 17, 61, 4, 4, 40, 40, false, 0, absent(), false, 9},
      {"short heads of 8 elements, packed, dropped", 40, 63, 63, 4, 4, 8, 8, false, 0.2, absent(), true},
      {"short heads, padding, dropped", 3, 64, 64, 4, 4, 64, 64, false, 0.1, bools({3, 1, 1, 64})},
      {"short heads, causal, few columns, dropped", 3, 50, 20, 3, 3, 32, 32, true, 0.3},
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
      {"few rows, capped, bias per head, dropped", 2, 50, 60, 2, 2, 144, 144, false, 0.1, fixed(normal({1, 2, 50, 60})),
       false, 0, 1.5},
      {"few rows of short heads", 3, 40, 56, 3, 3, 36, 36},
      {"few rows of an odd head, one row", 3, 1, 64, 2, 2, 13, 13},
      {"blocks of four tiles of rows, of which one has none, padding", 5, 390, 100, 12, 12, 64, 64, false, 0,
       open_between(100, {{0, 100}, {0, 64}, {0, 0}, {70, 90}, {0, 30}}, -infinity)},
      {"blocks of four tiles of rows, heads of 32", 10, 200, 130, 12, 6, 32, 32},
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
      {"closed rows", 2, 70, 130, 2, 2, 32, 32, false, 0, closed_row()},
      {"bias per head", 2, 100, 100, 2, 2, 64, 64, false, 0, fixed(normal({1, 2, 100, 100}))},
      {"bias per head in 16 bits, dropped", 2, 100, 100, 2, 2, 64, 64, false, 0.3,
       fixed(normal({1, 2, 100, 100}, DType::BF16))},
      {"windows", 6, 49, 49, 3, 3, 32, 32, false, 0, fixed(normal({1, 3, 49, 49})), true},
      {"more windows than blocks", 700, 13, 13, 2, 2, 16, 16, false, 0, fixed(normal({1, 2, 13, 13}))},
      {"more windows than blocks, causal, odd rows", 400, 5, 13, 3, 3, 8, 8, true, 0},
      {"many windows for a block", 1500, 13, 13, 3, 3, 32, 32, false, 0, fixed(normal({1, 3, 13, 13}))},
      {"many windows for a block, causal, more columns than rows", 180, 20, 60, 24, 24, 32, 32, true, 0},
      {"many windows for a block, causal, to the brim", 450, 61, 64, 3, 3, 32, 32, true, 0,
       fixed(normal({1, 3, 61, 64}))},
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
      {"causal, numbers of heads and columns", 2, 300, 300, 4, 4, 64, 64, true, 0, fixed(normal({1, 4, 1, 300}))},
      {"causal, numbers of heads and columns, grouped", 2, 300, 300, 4, 2, 64, 64, true, 0,
       fixed(normal({1, 4, 1, 300}))},
      {"causal, numbers that grow with columns by head", 1, 300, 300, 2, 2, 64, 64, true, 0,
       fixed(values({1, 2, 1, 300}, growing_numbers(300, {0.01, 0.5})))},
      {"heads of 32, odd rows", 2, 257, 257, 3, 3, 32, 32},
      {"heads of 32, causal, dropped, packed", 2, 150, 150, 2, 2, 32, 32, true, 0.1, absent(), true},
      {"heads of 32, causal, grouped, many tiles", 1, 600, 600, 4, 2, 32, 32, true},
      {"heads of 32, cross, dropped", 1, 131, 397, 4, 2, 32, 32, false, 0.25},
      {"heads of 32, padding of whole tiles by numbers", 3, 300, 330, 2, 2, 32, 32, false, 0,
       open_between(330, {{0, 64}, {200, 330}, {100, 200}}, far_below)},
      {"heads of 32, a sample that is closed whole", 2, 130, 330, 2, 1, 32, 32, false, 0.1,
       open_between(330, {{0, 0}, {70, 90}}, -infinity)},
      {"heads of 32, eight on one, sliding window, dropped", 1, 333, 333, 8, 1, 32, 32, true, 0.1, absent(), false, 90},
      {"heads of 32, a bias per head in 16 bits", 3, 196, 200, 3, 3, 32, 32, false, 0,
       fixed(normal({1, 3, 196, 200}, DType::BF16))},
      {"heads of 32, a bias per head in 16 bits, causal, dropped", 3, 264, 264, 4, 2, 32, 32, true, 0.1,
       fixed(normal({1, 4, 264, 264}, DType::BF16))},
      {"heads of 32, a bias per head", 3, 200, 132, 3, 3, 32, 32, false, 0, fixed(normal({1, 3, 200, 132}))},
      {"heads of 32, one bias of samples, dropped", 3, 130, 200, 2, 2, 32, 32, false, 0.2,
       fixed(normal({3, 1, 130, 200}))},
      {"heads of 32, a bias of samples and heads in 16 bits, packed", 2, 200, 200, 3, 3, 32, 32, true, 0,
       fixed(normal({2, 3, 200, 200}, DType::BF16)), true},
      {"heads of 24 and values of 16, a bias in f16", 2, 200, 136, 4, 2, 24, 16, false, 0,
       fixed(normal({1, 4, 200, 136}, DType::F16)), false, 0, 0, false, false, 0, DType::F16},
      {"heads of 16, causal, dropped, f16", 2, 200, 200, 4, 2, 16, 16, true, 0.1, absent(), false, 0, 0, false, false,
       0, DType::F16},
      {"heads of 32, a bias per head in 16 bits, odd rows", 3, 196, 196, 3, 3, 32, 32, false, 0,
       fixed(normal({1, 3, 196, 196}, DType::BF16))},
      {"bias of samples and heads in 16 bits, odd rows, dropped", 2, 199, 199, 2, 2, 64, 64, false, 0.1,
       fixed(normal({2, 2, 199, 199}, DType::BF16))},
      {"heads of 8 and values of 32", 2, 150, 200, 2, 2, 8, 32},
      {"heads of 32, causal, slanted", 2, 200, 200, 4, 4, 32, 32, true, 0, absent(), false, 0, 0, true},
      {"heads of 32, causal, capped", 2, 200, 200, 4, 2, 32, 32, true, 0, absent(), false, 0, 1.5},
      {"more blocks of rows than at a time, heads of 32, dropped", 34, 260, 200, 4, 4, 32, 32, false, 0.1},
      {"more blocks of rows than at a time, heads of 32, a bias per head in 16 bits", 34, 200, 200, 4, 4, 32, 32, false,
       0, fixed(normal({1, 4, 200, 200}, DType::BF16))},
      {"heads of 80, odd rows", 2, 257, 257, 3, 3, 80, 80},
      {"heads of 80, causal, dropped, packed", 2, 150, 150, 2, 2, 80, 80, true, 0.1, absent(), true},
      {"heads of 80, padding, grouped", 2, 130, 333, 4, 2, 80, 80, false, 0, bools({2, 1, 1, 333})},
      {"heads of 80, padding of whole tiles by numbers, dropped", 3, 200, 330, 4, 2, 80, 80, false, 0.1,
       open_between(330, {{0, 64}, {200, 330}, {100, 200}}, far_below)},
      {"heads of 80, a sample that is closed whole", 2, 130, 330, 2, 1, 80, 80, false, 0,
       open_between(330, {{0, 0}, {70, 90}}, -infinity)},
      {"heads of 80, eight on one, sliding window, dropped", 1, 333, 333, 8, 1, 80, 80, true, 0.1, absent(), false, 90},
      {"more blocks of rows than at a time, heads of 80, causal", 18, 260, 260, 8, 2, 80, 80, true},
      {"more blocks of rows than at a time, heads of 80, dropped", 14, 260, 200, 4, 4, 80, 80, false, 0.1},
      {"heads of 72, cross, odd rows", 1, 131, 397, 4, 2, 72, 72},
      {"heads of 88, odd rows, packed", 2, 333, 333, 3, 3, 88, 88, false, 0, absent(), true},
      {"heads of 96, causal, odd rows, dropped", 2, 333, 333, 4, 2, 96, 96, true, 0.1},
      {"heads of 96, causal, many tiles", 1, 600, 600, 4, 2, 96, 96, true},
      {"heads of 96, padding, window to both sides", 2, 330, 330, 2, 2, 96, 96, false, 0, bools({2, 1, 1, 330}), false,
       17},
      {"more blocks of rows than at a time, heads of 96, dropped", 14, 260, 200, 4, 4, 96, 96, false, 0.1},
      {"heads of 96 and values of 72", 2, 200, 200, 4, 2, 96, 72, true, 0.1},
      {"heads of 72 and values of 128", 1, 140, 200, 2, 2, 72, 128},
      {"heads of 256, causal, grouped", 1, 330, 330, 6, 2, 256, 256, true},
      {"heads of 256, cross, dropped", 1, 130, 400, 4, 2, 256, 256, false, 0.25},
      {"heads of 256, sliding window, dropped", 1, 300, 300, 4, 1, 256, 256, true, 0.1, absent(), false, 140},
      {"heads of 256, eight on one", 1, 200, 260, 8, 1, 256, 192, false, 0.1},
      {"heads of 128, eight on one, causal", 1, 330, 330, 8, 1, 128, 128, true},
      {"heads of 64, six on one, sliding window, packed", 1, 330, 330, 6, 1, 64, 64, true, 0.1, absent(), true, 90},
      {"heads of 192 and values of 128, causal, grouped", 1, 330, 330, 6, 2, 192, 128, true},
      {"heads of 184 and values of 120, cross, dropped", 2, 200, 140, 2, 2, 184, 120, false, 0.2},
      {"heads of 192 and values of 128, a window that leaves rows without columns", 1, 250, 120, 2, 2, 192, 128, false,
       0, absent(), false, 20},
      {"heads of 160, padding", 2, 140, 200, 2, 2, 160, 160, false, 0, bools({2, 1, 1, 200})},
      {"heads of 192 and values of 256", 2, 140, 200, 2, 2, 192, 256, false, 0, bools({2, 1, 1, 200})},
      {"heads of 256 and values of 96", 1, 200, 140, 2, 2, 256, 96, true, 0.1},
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

}  // namespace plimsoll::testing
