#include "tests/cuda/on_card/attention_cases.h"

#include <limits>

// Attention's kernels on rows and columns that cross their tiles, forward and backward, with what the op's own samples
// are too small for.

using namespace plimsoll;
using namespace plimsoll::testing;
using namespace plimsoll::samples;

namespace {

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
  std::vector<AttentionCase> cases = attention_cases();
  llvm::append_range(cases, attention_form_cases());
  for (const AttentionCase& c : cases) SUBCASE(c.name) {
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
    for (int64_t rows : {49, 150, 152})  // the copy engine brings masks of the last alone
      for (const auto& [has_rows, softcap] : {std::pair(false, 0.0), std::pair(true, 0.0), std::pair(true, 2.0)}) {
        CAPTURE(depth);
        CAPTURE(rows);
        CAPTURE(has_rows);
        CAPTURE(softcap);
        const int64_t mask_rows = has_rows ? rows : 1;
        std::vector<double> mask;
        for (int64_t i = 0; i < 2 * mask_rows * rows; ++i) {
          const bool is_whole = has_rows ? i / rows % 7 == 3 : i / rows == 1;
          mask.push_back(is_whole || i % rows > rows / 2 ? closed : 0);
        }
        const AttentionCase c{.name = "closed by large numbers",
                              .batch = 2,
                              .rows = rows,
                              .columns = rows,
                              .heads = 2,
                              .kv_heads = 2,
                              .depth = depth,
                              .value_depth = depth,
                              .mask = values({2, 1, mask_rows, rows}, mask),
                              .softcap = softcap};
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
  for (int64_t depth : {32, 64, 80, 96, 128, 192, 256}) {
    CAPTURE(depth);
    const AttentionCase c{"few tiles", 1, 200, 200, 4, 2, depth, depth == 192 ? 128 : depth, true, 0.1};
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
  for (int64_t depth : {32, 64, 80, 96})
    for (bool causal : {false, true})
      for (double dropout : {0.0, 0.1}) {
        CAPTURE(depth);
        CAPTURE(causal);
        CAPTURE(dropout);
        AttentionCase c{"many heads", 4, 200, 300, 64, 32, depth, depth, causal, dropout};
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
    for (int64_t depth : {32, 64, 80, 96, 128, 192, 256}) {
      CAPTURE(causal);
      CAPTURE(depth);
      const int64_t value_depth = depth == 192 ? 128 : depth;
      AttentionCase c{"many heads", 4, 700, 700, 32, 8, depth, value_depth, causal, 0.1};
      std::vector<SampleOperand> operands = inputs_of(c);
      const SampleOperand y = normal({c.batch, c.rows, c.heads * value_depth}, DType::BF16);
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
  for (bool causal : {false, true})
    for (int64_t depth : {32, 64}) {
      CAPTURE(causal);
      CAPTURE(depth);
      AttentionCase c{"bias of heads", 8, 500, 500, 12, 12, depth, depth, causal, 0.1};
      c.mask = normal({1, c.heads, c.rows, c.columns});
      std::vector<SampleOperand> operands = inputs_of(c);
      const SampleOperand y = normal({c.batch, c.rows, c.heads * c.depth}, DType::BF16);
      operands.insert(operands.end(), {y, normal({c.batch, c.heads, c.rows}), y});
      llvm::append_range(operands, masks_of(c));
      check_bits(KernelCase("attention_grad_with_mask", attrs_of(c), operands, 5));
      check_bits(KernelCase("attention_grad", attrs_of(c), operands, 5));
    }
}

// Warps may fall behind the others of their block for microseconds, most of all where the code of other kernels was
// between: what they wait for must not come and go meanwhile.
TEST_CASE("attention with dropout ends, and has the same bits, as often as it runs between other kernels") {
  constexpr int64_t times = 10000;
  AttentionCase c{"padded samples", 64, 512, 512, 12, 12, 64, 64, false, 0.1, samples::bools({64, 1, 1, 512})};
  std::vector<SampleOperand> operands = inputs_of(c);
  llvm::append_range(operands, masks_of(c));
  const KernelCase forward("attention", attrs_of(c), operands, 5);
  operands = inputs_of(c);
  const SampleOperand y = normal({c.batch, c.rows, c.heads * c.depth}, DType::BF16);
  operands.insert(operands.end(), {y, normal({c.batch, c.heads, c.rows}), y});
  llvm::append_range(operands, masks_of(c));
  const KernelCase backward("attention_grad", attrs_of(c), operands, 5);
  const auto on_card = [](const KernelCase& each, llvm::StringRef kernel) {
    for (const KernelCandidate& candidate : candidates_of(CudaCatalog(card_under_test()), each))
      if (candidate.name == kernel) return CaseOnCard(each, candidate, {});
    FAIL("no kernel is called so");
    abort();
  };
  const CaseOnCard first = on_card(forward, "mma"), second = on_card(backward, "one_pass");
  const std::vector<Tensor> once = first.run(forward), once_backward = second.run(backward);
  const auto executor = first.open(forward), backward_executor = second.open(backward);
  for (int64_t i = 0; i < times; ++i) {
    CaseOnCard::run_once(*executor);
    CaseOnCard::run_once(*backward_executor);
  }
  const auto check_same = [](const std::vector<Tensor>& wanted, const std::vector<Tensor>& got) {
    for (size_t i = 0; i < wanted.size(); ++i)
      CHECK(std::memcmp(wanted[i].data(), got[i].data(), static_cast<size_t>(wanted[i].type().bytes())) == 0);
  };
  check_same(once, first.results(*executor));
  check_same(once_backward, second.results(*backward_executor));
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
