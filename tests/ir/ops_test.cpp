// Checks every op record on its own samples: the reference writes every result that inference promises, the gradient
// rule agrees with finite differences in double, and the text form keeps the node.

#include "ir/builder.h"
#include "ir/evaluate.h"
#include "ir/support/strings.h"
#include "ir/text.h"
#include "tests/support/finite_differences.h"
#include "tests/support/sample_tensors.h"

#include "doctest/doctest.h"
#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <cstring>
#include <map>

using namespace plimsoll;

namespace {

constexpr double gradient_tolerance = 1e-6;  // error of finite differences with large third derivatives

enum class Dtypes { AsSampled, AllDouble };

// One sample with its tensors.
struct Case {
  const OpDef* op;
  Attrs attrs;
  std::vector<Tensor> tensors;                   // one per operand; empty if absent
  llvm::SmallVector<const Tensor*, 4> operands;  // null if absent
  llvm::SmallVector<bool, 4> differentiate;

  size_t count() const { return operands.size(); }
};

DType chosen(DType dtype, Dtypes dtypes) { return dtypes == Dtypes::AllDouble && is_float(dtype) ? DType::F64 : dtype; }

Case make_case(const OpDef& op, const Sample& sample, uint32_t seed, Dtypes dtypes) {
  Case c{&op, {}, std::vector<Tensor>(sample.operands.size()), {}, {}};
  for (const Attrs::Entry& entry : sample.attrs.entries()) {
    const auto* dtype = std::get_if<DType>(&entry.second);
    c.attrs.set(entry.first, dtype ? Attr(chosen(*dtype, dtypes)) : entry.second);
  }
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    const SampleOperand& operand = sample.operands[i];
    bool absent = operand.fill == SampleOperand::Fill::Absent;
    Type type(chosen(operand.type.dtype, dtypes), operand.type.shape);
    if (!absent) c.tensors[i] = sample_tensor(operand, type, seed, static_cast<uint32_t>(i));
    c.operands.push_back(absent ? nullptr : &c.tensors[i]);
    c.differentiate.push_back(!absent && operand.differentiate && is_float(type.dtype));
  }
  return c;
}

template <typename Visit>
void for_each_case(Dtypes dtypes, Visit visit) {
  uint32_t seed = 1;
  for (const OpDef* op : all_ops()) {
    // The body of the one says other types, and the numbers of the others are defined in f32.
    const bool is_f32 = starts_with(op->name, "dequantize") || op->name == "adamw_8bit" || op->name.contains("f8");
    if (dtypes == Dtypes::AllDouble && (op->name == "fused" || is_f32)) continue;
    std::vector<Sample> samples = op->samples();
    for (size_t i = 0; i < samples.size(); ++i) {
      INFO("op ", op->name.str(), ", sample ", i, " ", to_text(samples[i].attrs));
      visit(make_case(*op, samples[i], seed++, dtypes));
    }
  }
}

template <typename T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  FAIL(llvm::toString(result.takeError()));
  std::abort();
}

// A graph of one node whose operands are inputs.
struct OneNode {
  Graph graph;
  NodeId node = NodeId::None;
  Bindings bindings;
};

void build(OneNode& one, const Case& c) {
  llvm::SmallVector<ValueId, 4> operands;
  for (size_t i = 0; i < c.count(); ++i) {
    if (!c.operands[i]) {
      operands.push_back(ValueId::None);
      continue;
    }
    operands.push_back(one.graph.add_input("x" + std::to_string(i), c.operands[i]->type()));
    one.bindings[operands.back()] = c.operands[i];
  }
  one.node = must(Builder(one.graph).create(*c.op, operands, c.attrs));
}

std::vector<Tensor> run_reference(const Case& c, int poison) {
  llvm::SmallVector<const Type*, 4> types;
  llvm::SmallVector<TensorView, 4> operands, results;
  for (const Tensor* operand : c.operands) {
    types.push_back(operand ? &operand->type() : nullptr);
    operands.push_back(operand ? operand->view() : TensorView{});
  }
  OpCall call(*c.op, c.attrs, types);
  std::vector<Tensor> tensors;
  for (const Type& type : must(infer(call))) {
    tensors.emplace_back(type);
    std::memset(tensors.back().data(), poison, static_cast<size_t>(type.bytes()));
  }
  for (const Tensor& tensor : tensors) results.push_back(tensor.view());
  if (Status s = c.op->reference(ReferenceCall(call, operands, results))) FAIL(llvm::toString(std::move(s)));
  return tensors;
}

// ---- Gradients ----

// The gradient of each result; null if there is none.
using Cotangents = std::vector<const Tensor*>;

double weighted_sum(const Case& c, const Cotangents& cotangents) {
  std::vector<Tensor> results = must(evaluate_node(*c.op, c.attrs, c.operands));
  double sum = 0;
  for (size_t r = 0; r < results.size(); ++r)
    for (int64_t i = 0; cotangents[r] && i < results[r].type().elements(); ++i)
      sum += cotangents[r]->get(i) * results[r].get(i);
  return sum;
}

// The rule's gradient of each operand; none if the rule gives none.
Result<std::vector<std::optional<Tensor>>> try_rule(const Case& c, const Cotangents& cotangents,
                                                    llvm::ArrayRef<bool> wanted) {
  OneNode one;
  build(one, c);
  llvm::SmallVector<ValueId, 4> out_grads;
  for (size_t r = 0; r < cotangents.size(); ++r) {
    out_grads.push_back(ValueId::None);
    if (!cotangents[r]) continue;
    out_grads.back() = one.graph.add_input("dy" + std::to_string(r), cotangents[r]->type());
    one.bindings[out_grads.back()] = cotangents[r];
  }
  Builder builder(one.graph);
  GradContext g(builder, one.node, out_grads, wanted);
  if (Status s = c.op->gradient.function()(g)) return s;

  std::vector<std::optional<Tensor>> gradients(c.count());
  for (size_t i = 0; i < c.count(); ++i)
    if (g.gradients()[i] != ValueId::None) one.graph.outputs.push_back({"d" + std::to_string(i), g.gradients()[i]});
  Evaluation evaluation = must(evaluate(one.graph, one.bindings));
  for (size_t i = 0, next = 0; i < c.count(); ++i)
    if (g.gradients()[i] != ValueId::None) gradients[i] = std::move(evaluation.outputs[next++]);
  return gradients;
}

std::vector<std::optional<Tensor>> rule_gradients(const Case& c, const Cotangents& cotangents,
                                                  llvm::ArrayRef<bool> wanted) {
  return must(try_rule(c, cotangents, wanted));
}

void compare(const Case& c, size_t operand, const Cotangents& cotangents, const std::optional<Tensor>& gradient) {
  std::vector<double> expected =
      testing::finite_differences(c.operands[operand]->view(), [&] { return weighted_sum(c, cotangents); });
  double largest = 1;
  for (double slope : expected) largest = std::max(largest, std::fabs(slope));
  for (size_t i = 0; i < expected.size(); ++i) {
    double got = gradient ? gradient->get(static_cast<int64_t>(i)) : 0;
    INFO("operand ", operand, ", element ", i, ": rule ", got, ", differences ", expected[i]);
    CHECK(std::fabs(got - expected[i]) <= gradient_tolerance * largest);
  }
}

// Asks for all gradients at once, then for each operand alone; the others must get none.
void check_gradients(const Case& c, const Cotangents& cotangents) {
  std::vector<std::optional<Tensor>> all = rule_gradients(c, cotangents, c.differentiate);
  for (size_t i = 0; i < c.count(); ++i) {
    if (!c.differentiate[i]) {
      CHECK_FALSE(all[i].has_value());
      continue;
    }
    compare(c, i, cotangents, all[i]);
    llvm::SmallVector<bool, 4> alone(c.count(), false);
    alone[i] = true;
    std::vector<std::optional<Tensor>> one = rule_gradients(c, cotangents, alone);
    for (size_t j = 0; j < c.count(); ++j) CHECK(one[j].has_value() == (j == i && all[i].has_value()));
    if (one[i]) compare(c, i, cotangents, one[i]);
  }
}

// Draws a random gradient for each float result.
std::vector<Tensor> random_cotangents(const Case& c) {
  std::vector<Tensor> results = must(evaluate_node(*c.op, c.attrs, c.operands));
  for (size_t r = 0; r < results.size(); ++r)
    for (int64_t i = 0; i < results[r].type().elements(); ++i)
      results[r].view().set(i, RandomStream{99, static_cast<int64_t>(r), 1}.normal(i));
  return results;
}

// Returns the float results whose gradients the rule passes on. It may refuse some, such as statistics that only
// backward reads, but not all.
Cotangents accepted_cotangents(const Case& c, const std::vector<Tensor>& tensors) {
  Cotangents accepted(tensors.size(), nullptr);
  for (size_t r = 0; r < tensors.size(); ++r) {
    if (!is_float(tensors[r].type().dtype)) continue;
    Cotangents only(tensors.size(), nullptr);
    only[r] = &tensors[r];
    Result<std::vector<std::optional<Tensor>>> gradients = try_rule(c, only, c.differentiate);
    if (gradients)
      accepted[r] = &tensors[r];
    else
      llvm::consumeError(gradients.takeError());
  }
  CHECK(llvm::any_of(accepted, [](const Tensor* tensor) { return tensor != nullptr; }));
  return accepted;
}

// ---- Chunks of a batch ----

Tensor rows_of(const Tensor& whole, Chunk part) {
  Type type = whole.type();
  type.shape[0] /= part.count;
  return Tensor(type, static_cast<const std::byte*>(whole.data()) + type.bytes() * part.index);
}

// Calls the op on one chunk, as its record says.
std::vector<Tensor> evaluate_part(const Case& c, const ChunkCall& call, Chunk part) {
  std::vector<Tensor> cut(c.count());
  llvm::SmallVector<const Tensor*, 4> operands;
  for (size_t i = 0; i < c.count(); ++i) {
    if (call.cut[i]) cut[i] = rows_of(*c.operands[i], part);
    operands.push_back(call.cut[i] ? &cut[i] : c.operands[i]);
  }
  return must(evaluate_node(*c.op, call.attrs, operands));
}

// Evaluates the record's sample_weight, which must not read operand 0.
double sample_weight(const Case& c) {
  OneNode one;
  build(one, c);
  const ValueId first = one.graph.node(one.node).operands[0];
  Builder b(one.graph);
  const ValueId weight = c.op->sample_weight(b, one.node);
  for (NodeId user : one.graph.value(first).users) CHECK(user == one.node);
  one.graph.outputs.push_back({"weight", weight});
  return must(evaluate(one.graph, one.bindings)).outputs[0].get(0);
}

// Rows must be equal bit for bit, sums and means up to the rounding of another order. A weighted mean is over `weight`.
void check_joined(const Tensor& whole, Combine join, llvm::ArrayRef<const Tensor*> parts, double weight) {
  for (size_t p = 0; join == Combine::Rows && p < parts.size(); ++p) {
    CAPTURE(p);
    REQUIRE(to_string(parts[p]->type()) ==
            to_string(rows_of(whole, {static_cast<int64_t>(p), static_cast<int64_t>(parts.size())}).type()));
    CHECK(*parts[p] == rows_of(whole, {static_cast<int64_t>(p), static_cast<int64_t>(parts.size())}));
  }
  for (int64_t i = 0; join != Combine::Rows && i < whole.type().elements(); ++i) {
    double sum = 0, size = 0;
    for (const Tensor* part : parts) {
      REQUIRE(to_string(part->type()) == to_string(whole.type()));
      sum += part->get(i);
      size += std::fabs(part->get(i));
    }
    const double over = join == Combine::Mean           ? static_cast<double>(parts.size())
                        : join == Combine::WeightedMean ? weight
                                                        : 1;
    CHECK(std::fabs(sum / over - whole.get(i)) <= 1e-14 * (size / over + std::fabs(whole.get(i))));
  }
}

bool check_parts(const Case& c, int64_t count) {
  llvm::SmallVector<const Type*, 4> types;
  for (const Tensor* operand : c.operands) types.push_back(operand ? &operand->type() : nullptr);
  const OpCall call(*c.op, c.attrs, types);
  std::vector<std::vector<Tensor>> parts;
  std::optional<ChunkCall> part;
  for (int64_t p = 0; p < count; ++p) {
    part = chunk_of(*c.op, call, {p, count});
    if (!part) return false;
    REQUIRE(part->cut.size() == c.count());
    parts.push_back(evaluate_part(c, *part, {p, count}));
  }
  const std::vector<Tensor> whole = must(evaluate_node(*c.op, c.attrs, c.operands));
  const bool weighted = combine_of(*part, 0) == Combine::WeightedMean;
  REQUIRE((!weighted || c.op->sample_weight));
  const double weight = weighted ? sample_weight(c) : 1;
  if (weighted) CHECK(weight == whole.back().get(0));
  for (size_t r = 0; r < whole.size(); ++r) {
    INFO("result ", r, " of ", count, " parts");
    llvm::SmallVector<const Tensor*, 4> of_result;
    for (const std::vector<Tensor>& results : parts) of_result.push_back(&results[r]);
    check_joined(whole[r], combine_of(*part, r), of_result, weight);
  }
  return true;
}

// ---- Parts of a dimension ----

Tensor part_of(const Tensor& whole, const Cut& cut, int64_t ranks, int64_t rank) {
  Type type = whole.type();
  type.shape[static_cast<size_t>(cut.dim)] = part_size(cut, ranks);
  Tensor part(type);
  copy_to_piece(part.view(), whole.view(), cut, rank);
  return part;
}

// Calls the op on the parts of one rank, as its record says.
std::vector<Tensor> evaluate_rank(const Case& c, const DividedCall& call, int64_t ranks, int64_t rank) {
  std::vector<Tensor> parts(c.count());
  llvm::SmallVector<const Tensor*, 4> operands;
  for (size_t i = 0; i < c.count(); ++i) {
    if (call.operands[i]) parts[i] = part_of(*c.operands[i], *call.operands[i], ranks, rank);
    const bool later = llvm::is_contained(call.after, i);
    operands.push_back(later ? nullptr : call.operands[i] ? &parts[i] : c.operands[i]);
  }
  Mesh mesh;
  mesh[MeshAxis::Tensor] = ranks;
  return must(evaluate_node(*c.op, attrs_of_rank(call.attrs, mesh, rank), operands));
}

// Summands and what is added to them make the whole, up to the rounding of another order.
void check_sum(const Case& c, const DividedCall& call, const Tensor& whole, llvm::ArrayRef<const Tensor*> summands) {
  const Shape& shape = whole.type().shape;
  for (int64_t i = 0; i < whole.type().elements(); ++i) {
    double sum = 0, size = 0;
    for (const Tensor* summand : summands) sum += summand->get(i), size += std::fabs(summand->get(i));
    for (size_t each : call.after) {
      const int64_t elements = c.operands[each]->type().elements();
      REQUIRE((elements == whole.type().elements() || elements == shape.back()));
      sum += c.operands[each]->get(i % elements);
    }
    CHECK(std::fabs(sum - whole.get(i)) <= 1e-13 * (size + std::fabs(whole.get(i)) + 1));
  }
}

// Every rank's results together are the op's. Gives false where the op makes no such claim, or not by itself.
bool check_division(const Case& c, const std::vector<Tensor>& whole, const CutAt& known, int64_t ranks) {
  llvm::SmallVector<const Type*, 4> operands;
  Types results;
  for (const Tensor* operand : c.operands) operands.push_back(operand ? &operand->type() : nullptr);
  for (const Tensor& each : whole) results.push_back(each.type());
  const std::optional<DividedCall> call = divide_call(*c.op, OpCall(*c.op, c.attrs, operands), results, known, ranks);
  if (!call || call->make) return false;
  REQUIRE(call->operands.size() == c.count());
  REQUIRE(call->results.size() == whole.size());
  const std::optional<Cut>& answer = (known.side == CutAt::Side::Operand ? call->operands : call->results)[known.index];
  REQUIRE(answer);
  if (*answer != known.cut) {
    REQUIRE(part_size(*answer, ranks) > part_size(known.cut, ranks));
    return check_division(c, whole, {known.side, known.index, *answer}, ranks);
  }
  std::vector<std::vector<Tensor>> parts;
  for (int64_t rank = 0; rank < ranks; ++rank) parts.push_back(evaluate_rank(c, *call, ranks, rank));
  for (size_t r = 0; r < whole.size(); ++r) {
    INFO("result ", r, " of ", ranks, " ranks");
    llvm::SmallVector<const Tensor*, 4> of_result;
    for (const std::vector<Tensor>& each : parts) of_result.push_back(&each[r]);
    if (call->sums) {
      check_sum(c, *call, whole[r], of_result);
      continue;
    }
    Tensor joined(whole[r].type());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      if (!call->results[r])
        joined = *of_result[static_cast<size_t>(rank)];
      else
        copy_from_piece(joined.view(), of_result[static_cast<size_t>(rank)]->view(), *call->results[r], rank);
      if (!call->results[r]) CHECK(joined == whole[r]);
    }
    CHECK(joined == whole[r]);
    for (int64_t rank = 0; r == 0 && call->results[r] && rank < ranks; ++rank) {
      // Zeros behind the end, of either sign.
      const Tensor want = part_of(joined, *call->results[r], ranks, rank);
      for (int64_t i = 0; i < want.type().elements(); ++i)
        CHECK(want.get(i) == of_result[static_cast<size_t>(rank)]->get(i));
    }
  }
  return true;
}

// How many of the dimensions of the case's operands and results ranks may divide.
int check_divisions(const Case& c, int64_t ranks) {
  const std::vector<Tensor> whole = must(evaluate_node(*c.op, c.attrs, c.operands));
  int checked = 0;
  auto check_dims = [&](CutAt::Side side, size_t i, const Shape& shape) {
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      const CutAt known{side, i, {static_cast<int64_t>(dim), {shape[dim]}}};
      INFO((side == CutAt::Side::Result ? "result " : "operand "), i, " cut in dimension ", dim);
      if (can_divide(known.cut, ranks)) checked += check_division(c, whole, known, ranks);
    }
  };
  for (size_t i = 0; i < c.count(); ++i)
    if (c.operands[i]) check_dims(CutAt::Side::Operand, i, c.operands[i]->type().shape);
  for (size_t i = 0; i < whole.size(); ++i) check_dims(CutAt::Side::Result, i, whole[i].type().shape);
  return checked;
}

bool has_rule(const Case& c) {
  return c.op->gradient.kind() == Gradient::Kind::Rule && llvm::is_contained(c.differentiate, true);
}

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("a record is complete") {
    for (const OpDef* op : all_ops()) {
      CAPTURE(op->name.str());
      CHECK(find_op(op->name) == op);
      CHECK_FALSE(op->summary.empty());
      REQUIRE(bool(op->infer));
      REQUIRE(bool(op->reference));
      CHECK_FALSE(op->samples().empty());
      CHECK(op->in_place_pairs().size() == op->in_place.size());
      if (!op->addend.empty()) CHECK(!op->operands[op->operand(op->addend)].is_required());
    }
  }

  TEST_CASE("the reference writes every byte of its results and nothing else decides them") {
    for_each_case(Dtypes::AsSampled, [](const Case& c) {
      std::vector<Tensor> zeros = run_reference(c, 0x00), ones = run_reference(c, 0xff);
      for (size_t r = 0; r < zeros.size(); ++r) {
        CAPTURE(r);
        CHECK(zeros[r] == ones[r]);
      }
      if (c.op->is_view()) CHECK(zeros[0].type().bytes() == c.operands[c.op->operand(c.op->view_of)]->type().bytes());
    });
  }

  TEST_CASE("the interpreter gives what the reference gives") {
    for_each_case(Dtypes::AsSampled, [](const Case& c) {
      std::vector<Tensor> expected = run_reference(c, 0), got = must(evaluate_node(*c.op, c.attrs, c.operands));
      REQUIRE(expected.size() == got.size());
      for (size_t r = 0; r < got.size(); ++r) CHECK(expected[r] == got[r]);
    });
  }

  TEST_CASE("gradients agree with finite differences") {
    for_each_case(Dtypes::AllDouble, [](const Case& c) {
      if (!has_rule(c)) return;
      std::vector<Tensor> tensors = random_cotangents(c);
      const Cotangents all = accepted_cotangents(c, tensors);
      check_gradients(c, all);
      if (std::count(all.begin(), all.end(), nullptr) + 1 >= static_cast<int64_t>(all.size())) return;
      for (size_t r = 0; r < all.size(); ++r) {
        if (!all[r]) continue;
        INFO("only result ", r, " has a gradient");
        Cotangents only(all.size(), nullptr);
        only[r] = all[r];
        check_gradients(c, only);
      }
    });
  }

  TEST_CASE("gradients have the operand's type in the sample's own dtypes") {
    for_each_case(Dtypes::AsSampled, [](const Case& c) {
      if (!has_rule(c)) return;
      std::vector<Tensor> tensors = random_cotangents(c);
      std::vector<std::optional<Tensor>> gradients =
          rule_gradients(c, accepted_cotangents(c, tensors), c.differentiate);
      for (size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i]) CHECK(to_string(gradients[i]->type()) == to_string(c.operands[i]->type()));
    });
  }

  TEST_CASE("parts of a batch make the whole") {
    std::map<std::string, int> checked, weighted;
    for_each_case(Dtypes::AllDouble, [&](const Case& c) {
      for (int64_t count : {2, 3, 4, 5}) checked[c.op->name.str()] += check_parts(c, count);
      OneNode one;
      build(one, c);
      weighted[c.op->name.str()] += is_weighted_mean(one.graph, one.graph.node(one.node));
    });
    // A body says its types, and codes have f32 scales.
    for_each_case(Dtypes::AsSampled, [&](const Case& c) {
      if (c.op->name != "fused" && c.op->name != "adamw_8bit") return;
      for (int64_t count : {2, 4}) checked[c.op->name.str()] += check_parts(c, count);
    });
    for (const OpDef* op : all_ops()) {
      INFO(op->name.str(), " says how its parts come together, and no sample of it has any");
      CHECK((!op->chunk || checked[op->name.str()] > 0));
      CHECK((weighted[op->name.str()] > 0) == (op->sample_weight != nullptr));
    }
  }

  TEST_CASE("parts of a dimension make the whole") {
    std::map<std::string, int> checked;
    for_each_case(Dtypes::AllDouble, [&](const Case& c) {
      for (int64_t ranks : {2, 3, 4}) checked[c.op->name.str()] += check_divisions(c, ranks);
    });
    for (const OpDef* op : all_ops()) {
      INFO(op->name.str(), " says how ranks divide it, and no sample of it can be divided");
      const bool makes_its_own = op->name == "cross_entropy";
      CHECK((!op->divide || makes_its_own || checked[op->name.str()] > 0));
    }
  }

  TEST_CASE("the text form keeps the node") {
    for_each_case(Dtypes::AsSampled, [](const Case& c) {
      OneNode one;
      build(one, c);
      for (ValueId result : one.graph.node(one.node).results)
        one.graph.outputs.push_back({one.graph.value(result).name, result});
      std::string text = to_text(one.graph);
      CAPTURE(text);
      Graph parsed = must(parse_graph(text));
      CHECK(to_text(parsed) == text);
      CHECK(parsed.node(parsed.last_node()).attrs == one.graph.node(one.node).attrs);
    });
  }
}
