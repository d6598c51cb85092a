#pragma once

#include "ir/ops/common/samples.h"
#include "tests/cuda/on_card/case_on_card.h"

// What attention's kernels are tried on: rows and columns that cross their tiles, with every form of a mask.

namespace plimsoll::testing {

struct AttentionCase {
  const char* name;
  int64_t batch, rows, columns, heads, kv_heads, depth, value_depth;
  bool causal = false;
  double dropout = 0;
  SampleOperand mask = samples::absent();
  bool packed = false;
  int64_t window = 0;
  double softcap = 0;
  bool slopes = false, sinks = false;
  int64_t document = 0;  // rows of a packed document; 0: none
  DType dtype = DType::BF16;
};

std::vector<AttentionCase> attention_cases();
// Those with caps, slopes, sinks or documents, which change scores or rows besides.
std::vector<AttentionCase> attention_form_cases();
// A mask that adds `closed` to the columns of a sample outside [first, end).
SampleOperand open_between(int64_t columns, std::initializer_list<std::pair<int64_t, int64_t>> samples, double closed);
// [2, 1, 70, 130], of which row 3 is closed whole.
SampleOperand closed_row();

Attrs attrs_of(const AttentionCase& c);
// q, k and v, of which k and v are absent where q has them too.
std::vector<SampleOperand> inputs_of(const AttentionCase& c);
// The operands from the mask to the segments. Documents of one sample begin elsewhere than another's, and the last of
// each has the number of its first: segments need not be neighbours.
std::vector<SampleOperand> masks_of(const AttentionCase& c);
SampleOperand sinks_of(const AttentionCase& c);

}  // namespace plimsoll::testing
