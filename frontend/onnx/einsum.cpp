#include "frontend/onnx/import_rows.h"

// Einsum becomes transposes, sums, and one batched matmul per pair of operands, from left to right.

namespace plimsoll {
namespace {

// A value with one label per dimension. Letters come from the equation, digits stand for the dimensions of "...".
struct Labelled {
  ValueId value;
  std::string labels;
};

bool has(llvm::StringRef labels, char label) { return labels.contains(label); }

std::string keep_if(llvm::StringRef labels, llvm::function_ref<bool(char)> keep) {
  std::string kept;
  for (char label : labels)
    if (keep(label) && !has(kept, label)) kept += label;
  return kept;
}

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

// Replaces "..." by one digit per dimension; the last digit is always '9'.
std::string expand_ellipsis(NodeContext& n, llvm::StringRef term, int64_t rank) {
  size_t dots = term.find("...");
  if (dots == llvm::StringRef::npos) return term.str();
  int64_t count = rank - static_cast<int64_t>(term.size() - 3);
  if (count < 0 || count > 10) n.fail("'" + term + "' does not fit a tensor of rank " + llvm::Twine(rank));
  std::string digits;
  for (int64_t i = 0; i < count && !n.failed(); ++i) digits += static_cast<char>('9' - count + 1 + i);
  return (term.take_front(dots) + digits + term.drop_front(dots + 3)).str();
}

Equation read_equation(NodeContext& n, llvm::ArrayRef<ValueId> values) {
  std::string text = n.attr_string("equation", "");
  std::erase(text, ' ');
  auto [left, right] = llvm::StringRef(text).split("->");
  llvm::SmallVector<llvm::StringRef, 4> terms;
  left.split(terms, ',');
  if (terms.size() != values.size())
    n.fail("equation '" + text + "' does not have " + llvm::Twine(values.size()) + " operands");
  Equation equation;
  std::string all, dots;
  for (size_t i = 0; i < terms.size() && !n.failed(); ++i) {
    equation.operands.push_back(expand_ellipsis(n, terms[i], n.rank(values[i])));
    if (static_cast<int64_t>(equation.operands[i].size()) != n.rank(values[i]))
      n.fail("'" + terms[i] + "' does not fit " + to_string(n.type(values[i])));
    all += equation.operands[i];
    std::string digits = keep_if(equation.operands[i], llvm::isDigit);
    if (digits.size() > dots.size()) dots = digits;
  }
  bool explicit_result = llvm::StringRef(text).contains("->");
  if (explicit_result) {
    auto [before, after] = right.split("...");
    equation.result = before.str() + (right.contains("...") ? dots : "") + after.str();
  } else {
    equation.result = dots + keep_if(all, [&](char c) { return !llvm::isDigit(c) && llvm::count(all, c) == 1; });
    llvm::sort(equation.result.begin() + static_cast<long>(dots.size()), equation.result.end());
  }
  return equation;
}

// A label that occurs twice in one operand selects the diagonal: this zeroes the other elements and sums over one of
// the two dimensions.
Labelled take_diagonals(NodeContext& n, Labelled x) {
  for (size_t second = 1; second < x.labels.size() && !n.failed(); ++second) {
    size_t first = x.labels.find(x.labels[second]);
    if (first == second) continue;
    int64_t size = n.dim(x.value, static_cast<int64_t>(first));
    Shape shape(x.labels.size(), 1);
    shape[first] = shape[second] = size;
    Tensor eye(Type(n.type(x.value).dtype, {size, size}));
    for (int64_t i = 0; i < size; ++i) eye.view().set(i * size + i, 1);
    ValueId masked = n.emit("mul", {x.value, n.reshape(n.constant_value(std::move(eye)), shape)});
    x.value = n.reduce("reduce_sum", masked, {static_cast<int64_t>(second)}, false);
    x.labels.erase(second--, 1);
  }
  return x;
}

Labelled sum_out(NodeContext& n, Labelled x, llvm::StringRef needed) {
  Ints axes;
  for (size_t i = 0; i < x.labels.size(); ++i)
    if (!has(needed, x.labels[i])) axes.push_back(static_cast<int64_t>(i));
  return {n.reduce("reduce_sum", x.value, axes, false), keep_if(x.labels, [&](char c) { return has(needed, c); })};
}

// Transposes to the order of `labels`. A label that the value lacks becomes a dimension of 1.
ValueId arrange(NodeContext& n, const Labelled& x, llvm::StringRef labels) {
  Ints permutation;
  Shape shape;
  for (char label : labels) {
    size_t at = x.labels.find(label);
    if (at != std::string::npos) permutation.push_back(static_cast<int64_t>(at));
    shape.push_back(at == std::string::npos ? 1 : n.dim(x.value, static_cast<int64_t>(at)));
  }
  return n.reshape(n.transpose(x.value, permutation), shape);
}

Labelled contract(NodeContext& n, const Labelled& a, const Labelled& b, llvm::StringRef needed) {
  auto size = [&](char label) {
    auto in = [&](const Labelled& x) {
      size_t at = x.labels.find(label);
      return at == std::string::npos ? 1 : n.dim(x.value, static_cast<int64_t>(at));
    };
    return std::max(in(a), in(b));
  };
  auto total = [&](llvm::StringRef labels) {
    int64_t elements = 1;
    for (char label : labels) elements *= size(label);
    return elements;
  };
  std::string batch = keep_if(a.labels, [&](char c) { return has(b.labels, c) && has(needed, c); });
  std::string inner = keep_if(a.labels, [&](char c) { return has(b.labels, c) && !has(needed, c); });
  std::string rows = keep_if(a.labels, [&](char c) { return !has(b.labels, c); });
  std::string columns = keep_if(b.labels, [&](char c) { return !has(a.labels, c); });
  auto broadcast = [&](const Labelled& x, const std::string& labels) {
    Shape shape;
    for (char label : labels) shape.push_back(size(label));
    return n.expand(arrange(n, x, labels), shape);
  };
  ValueId left = n.reshape(broadcast(a, batch + rows + inner), {total(batch), total(rows), total(inner)});
  ValueId right = n.reshape(broadcast(b, batch + inner + columns), {total(batch), total(inner), total(columns)});
  ValueId y = n.emit("matmul", {left, right}, {{"transpose_a", 0}, {"transpose_b", 0}});
  Shape shape;
  for (char label : batch + rows + columns) shape.push_back(size(label));
  return {n.reshape(y, shape), batch + rows + columns};
}

}  // namespace

void import_einsum(NodeContext& n) {
  ValueList values = n.inputs();
  Equation equation = read_equation(n, values);
  if (n.failed()) return;
  Labelled result{ValueId::None, ""};
  for (size_t i = 0; i < values.size(); ++i) {
    // A label is still needed if the result or a later operand has it.
    std::string later = equation.result;
    for (size_t j = i + 1; j < values.size(); ++j) later += equation.operands[j];
    Labelled operand = take_diagonals(n, {values[i], equation.operands[i]});
    operand = sum_out(n, operand, later + result.labels);
    result = i == 0 ? operand : contract(n, result, operand, later);
    result = sum_out(n, result, later);
  }
  for (char label : equation.result)
    if (!has(result.labels, label))
      return n.fail(llvm::Twine("nothing in its equation defines '") + llvm::Twine(label) + "'");
  n.output(0, arrange(n, result, equation.result));
}

}  // namespace plimsoll
