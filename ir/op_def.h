#pragma once

// The contract of an op: one record says everything about it once. Inference, the
// gradient, what may alias or be repeated, what it costs, what it means (the
// reference), and the samples every shared op test runs.

#include "ir/graph.h"
#include "ir/linear_form.h"
#include "ir/op_signature.h"

namespace plimsoll {

struct OpDef;

// Shows a record's functions a node: its attributes and the types that it reads.
class OpCall {
 public:
  OpCall(const OpDef& op, const Attrs& attrs, llvm::ArrayRef<const Type*> operands)
      : op(op), attrs(attrs), operands_(operands) {}

  const OpDef& op;
  const Attrs& attrs;

  size_t count() const { return operands_.size(); }
  size_t index(PortKey operand) const;
  bool has(PortKey operand) const;
  const Type& operand(size_t i) const { return *operands_[i]; }
  const Type& operator[](PortKey operand) const { return *operands_[index(operand)]; }

  // Results whose record makes them depend on an operand or an attribute.
  bool gives(llvm::StringRef result) const;
  size_t result_index(PortKey result) const;

  // An attribute, or the default in its record.
  int64_t get_int(llvm::StringRef name) const;
  double get_float(llvm::StringRef name) const;
  llvm::StringRef get_string(llvm::StringRef name) const;
  llvm::ArrayRef<int64_t> get_ints(llvm::StringRef name) const { return attrs.get_ints(name); }

 private:
  llvm::ArrayRef<const Type*> operands_;
};

using Types = llvm::SmallVector<Type, 2>;
using InferFn = Result<Types> (*)(const OpCall& call);
using FlopsFn = double (*)(const OpCall& call, llvm::ArrayRef<Type> results);

// All elements in memory order.
std::vector<double> all_elements(const TensorView& view);

// Shows a reference a call and its elements. Absent operands have no data; results are dense, of the inferred
// types, not initialised.
class ReferenceCall : public OpCall {
 public:
  ReferenceCall(const OpCall& call, llvm::ArrayRef<TensorView> operands, llvm::ArrayRef<TensorView> results)
      : OpCall(call), operands(operands), results(results) {}

  llvm::ArrayRef<TensorView> operands, results;

  TensorView in(PortKey operand) const { return has(operand) ? operands[index(operand)] : TensorView(); }
  const TensorView& out(PortKey result) const { return results[result_index(result)]; }
  // An absent operand has no elements.
  std::vector<double> load(PortKey operand) const;
  void store(llvm::ArrayRef<double> values, PortKey result) const;
};

// A function of a record that returns a Status or, where it cannot fail, nothing.
template <typename Argument>
class RecordFn {
 public:
  constexpr RecordFn(Status (*fn)(Argument)) : may_fail_(fn) {}
  constexpr RecordFn(void (*fn)(Argument)) : cannot_fail_(fn) {}
  explicit constexpr operator bool() const { return may_fail_ || cannot_fail_; }
  Status operator()(Argument argument) const {
    if (may_fail_) return may_fail_(argument);
    cannot_fail_(argument);
    return Status::success();
  }

 private:
  Status (*may_fail_)(Argument) = nullptr;
  void (*cannot_fail_)(Argument) = nullptr;
};

// What the op means: plain loops in double, or in int64 for integers, which is exact.
using ReferenceFn = RecordFn<const ReferenceCall&>;
// The same for an op of several ranks: their calls, by the ranks' coordinates along the op's axis.
using CollectiveFn = void (*)(llvm::ArrayRef<ReferenceCall> members);

// How a value lies along an axis of the mesh.
enum class MeshPlacement : uint8_t {
  Whole,    // all ranks hold it alike
  Divided,  // each rank has a part of it, or something of its own
  Partial,  // each rank has a summand of it
};

// An op whose results depend on other ranks, or on which rank it is, and the placement along its axis of what it reads
// and of what it makes.
class Collective {
 public:
  constexpr Collective() = default;
  constexpr Collective(CollectiveFn members, MeshPlacement from, MeshPlacement to)
      : from(from), to(to), members_(members) {}

  MeshPlacement from = MeshPlacement::Whole, to = MeshPlacement::Whole;

  explicit constexpr operator bool() const { return members_; }
  void operator()(llvm::ArrayRef<ReferenceCall> members) const { members_(members); }

 private:
  CollectiveFn members_ = nullptr;
};

// The attributes that the op has for another batch size: operand types before and after. Errors where they do not
// follow from these types.
using AttrsForBatchFn = Result<Attrs> (*)(const OpCall& before, llvm::ArrayRef<const Type*> after);

class GradContext;
using GradientFn = RecordFn<GradContext&>;

// How gradients pass an op. There is no default: a record that forgets is refused by the compiler.
class Gradient {
 public:
  enum class Kind : uint8_t { Rule, Zero, Missing };

  static constexpr Gradient rule(GradientFn fn) { return Gradient(Kind::Rule, fn, ""); }
  // Piecewise constant or integer: nothing flows, and that is right.
  static constexpr Gradient zero() { return Gradient(Kind::Zero, no_function, ""); }
  // It has a derivative, we have no rule. `why` is shown to the user when a trained value depends on it.
  static constexpr Gradient missing(llvm::StringLiteral why) { return Gradient(Kind::Missing, no_function, why); }

  constexpr Kind kind() const { return kind_; }
  constexpr GradientFn function() const { return fn_; }
  constexpr llvm::StringLiteral why() const { return why_; }

 private:
  static constexpr Status (*no_function)(GradContext&) = nullptr;
  constexpr Gradient(Kind kind, GradientFn fn, llvm::StringLiteral why) : kind_(kind), fn_(fn), why_(why) {}
  Kind kind_;
  GradientFn fn_;
  llvm::StringLiteral why_;
};

enum class Precision : uint8_t {
  Low,     // matrix products and convolutions: gain from 16-bit operands
  Follow,  // computes in whatever its operands are
  Full,    // wants fp32: losses, norm statistics, softmax, long reductions, updates
};

// How an op computes the same elements when the dimensions of its operands stand in another order. An elementwise op
// needs nothing, if all its operands change alike.
enum class DimOrder : uint8_t {
  Fixed,         // it cannot, or its record does not say how
  ChannelsLast,  // for [N, spatial..., C] in place of [N, C, spatial...] {channels_last} is set
  Axis,          // {axis} is renumbered
  Axes,          // {axes} are renumbered, of a reduction that keeps its dimensions
  Lists,      // each list among the attributes has one entry per dimension, or several rounds of them, and is permuted
  LastStays,  // nothing, as long as the last dimension stays last
  FromAxisStay,  // nothing, as long as the dimensions from {axis} on stay where they are
};

// Result `result` may be written over operand `operand` when the operand is not read later and has as
// many bytes. The kernel contract allows exactly these overlaps and no other.
struct InPlace {
  int8_t result, operand;
  // Some ops give fewer results or read fewer operands than their record allows.
  bool applies_to(const Node& node) const {
    return static_cast<size_t>(result) < node.results.size() && static_cast<size_t>(operand) < node.operands.size() &&
           node.operands[static_cast<size_t>(operand)] != ValueId::None;
  }
};

// One of `count` equal chunks of a batch, along dimension 0.
struct Chunk {
  int64_t index, count;
};

// How the results of all chunks make the op's result.
enum class Combine : uint8_t {
  Rows,  // one after the other along dimension 0
  Sum,
  Mean,
  WeightedMean,  // the sum of the chunks' results, over OpDef::sample_weight of the whole batch
};

// The op on one chunk of the batch. It reads that chunk of some operands, and the others whole.
struct ChunkCall {
  llvm::SmallVector<bool, 4> cut;         // by operand
  llvm::SmallVector<Combine, 2> combine;  // by result; Rows for those past its end
  Attrs attrs;
};
// Returns none where a result's rows depend on rows of other chunks, or where the chunks would not be equal.
using ChunkFn = std::optional<ChunkCall> (*)(const OpCall& call, Chunk chunk);
// A dimension of an operand or of a result that ranks divide.
struct CutAt {
  enum class Side : uint8_t { Operand, Result } side;
  size_t index;
  Cut cut;
};

class Builder;
// Which rows the statistics of a batch are taken over, where several ranks share it.
enum class Statistics : uint8_t { OfAllRanks, OfOwnRows };
struct DividedCall;
// Makes what the node's results are on a rank, where that takes more than the op itself; the node's operands are the
// rank's.
using MakeDividedFn = llvm::SmallVector<ValueId, 4> (*)(Builder& b, const Node& node, const DividedCall& call,
                                                        int64_t ranks);

// The op on one rank's part of a dimension, which may be one that it sums over.
struct DividedCall {
  llvm::SmallVector<std::optional<Cut>, 4> operands;  // none: read whole
  llvm::SmallVector<std::optional<Cut>, 4> results;   // none: whole, alike on all ranks
  Attrs attrs;
  bool sums = false;                   // results are the ranks' summands
  llvm::SmallVector<size_t, 2> after;  // operands that are added to that sum, not by the op
  // Behind the end of the whole, in the last ranks' parts, zeros in operands give zeros in the first result, or add
  // nothing to sums. So parameters' gradients are zero there, and the zeros stay.
  bool may_be_uneven = false;
  MakeDividedFn make = nullptr;  // none: the op itself
};
// What follows for the op's other operands and results if one is cut so among `ranks`. Returns none where ranks cannot
// work so. A cut that it gives need not divide; who asks looks at that. Where ranks need larger parts of what is known,
// as of heads, that one's cut says so, and who agrees asks again.
using DivideFn = std::optional<DividedCall> (*)(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                                int64_t ranks);

// Makes the node's results from the rows of all `ranks` along the data axis, for ops that mix the rows of a batch; the
// node's batch operands are one rank's rows. The results are the rank's rows again, or alike on all ranks.
using AcrossRanksFn = llvm::SmallVector<ValueId, 4> (*)(Builder& b, const Node& node, int64_t ranks,
                                                        Statistics statistics);
// Makes the divisor of a mean over weighted samples. It may read any operand but the first, since it is computed before
// the samples' losses are.
using SampleWeightFn = ValueId (*)(Builder& b, NodeId node);

// Where the parts of a call begin in its whole, in elements. Returns nothing where they are no runs of consecutive
// elements.
using PartRunsFn = llvm::SmallVector<int64_t, 4> (*)(const OpCall& call);

// How the op tests fill an operand. Floats keep away from kinks where asked.
struct SampleOperand {
  enum class Fill : uint8_t {
    Normal,    // N(0, 1)
    Positive,  // uniform in [0.5, 1.5]
    Unit,      // uniform in [-0.9, 0.9]
    Distinct,  // a shuffled grid, so that maxima are unique and no value is near 0
    Integers,  // uniform integers in [low, high]
    Bools,
    Values,  // as given
    Absent,
  };
  Type type;
  Fill fill = Fill::Normal;
  int64_t low = 0, high = 1;  // Integers: inclusive
  Floats values;              // Values
  bool differentiate = true;  // compare its gradient with finite differences
};

struct Sample {
  llvm::SmallVector<SampleOperand, 4> operands;
  Attrs attrs;
};
using SamplesFn = std::vector<Sample> (*)();

struct OpDef {
  llvm::StringLiteral name;
  llvm::StringLiteral summary;  // one line: the meaning, operands and attributes by name
  Ports operands = {"x"}, results = {"y"};
  AttrSpecs attrs = {};
  InferFn infer;  // operand counts and attributes have been checked against the record
  Gradient gradient;
  Precision precision = Precision::Follow;
  bool repeatable = true;   // false for state updates and copies to the host: remat never runs them again
  llvm::StringRef view_of;  // result 0 has the bytes of this operand: no copy, no kernel
  // Every result holds elements of the first operand, as they are or converted, and perhaps fills. Views do too.
  bool moves_elements = false;
  // Of a loss over classes: the operand that has the class of each row of the first one, the scores.
  llvm::StringRef class_labels;
  // The operand of floats that 16 bits would ruin: places, which they round to neighbours, or what a logarithm is taken
  // of, which they round to 0 or 1.
  llvm::StringRef exact;
  // Every result element depends only on the operands' elements at its place, under numpy broadcasting.
  bool elementwise = false;
  DimOrder dim_order = DimOrder::Fixed;
  // This operand, absent or of result 0's type, is added to result 0 and to nothing else.
  llvm::StringRef addend;
  // Copies between memories read in one space and write in the other; every other op keeps to the device.
  Engine engine = Engine::Compute;
  NamePairs in_place = {};
  // Each result is a part of operand 0, or each operand is one of result 0, with the same elements. One that lies at
  // its run of the whole is not copied.
  PartRunsFn result_runs = nullptr, operand_runs = nullptr;
  FlopsFn flops = nullptr;                    // none: one per result element
  AttrsForBatchFn attrs_for_batch = nullptr;  // none: no attribute depends on the batch
  ChunkFn chunk = nullptr;                    // none: elementwise ops are cut by elements, others want the whole batch
  DivideFn divide = nullptr;                  // none: elementwise ops are cut by elements, others want whole operands
  SampleWeightFn sample_weight = nullptr;     // where result 0 may be a WeightedMean; it makes the last result
  LinearForms linear = {};                    // what ranks make of summands of an operand are summands of the result
  AcrossRanksFn across_ranks = nullptr;       // none: an op without `chunk` reads the gathered rows of all ranks
  Collective collective = {};
  ReferenceFn reference;
  SamplesFn samples;

  int min_operands() const;
  int max_operands() const;  // -1: any number
  bool is_view() const { return !view_of.empty(); }
  bool only_moves() const { return moves_elements || is_view(); }
  bool is_loss_over_classes() const { return !class_labels.empty(); }
  size_t operand(llvm::StringRef name) const { return index_of(operands, name); }
  size_t result(llvm::StringRef name) const { return index_of(results, name); }
  const AttrSpec& attr(llvm::StringRef name) const;  // must exist
  llvm::SmallVector<InPlace, 4> in_place_pairs() const;
};

// The operand of that name; None when it is absent.
ValueId operand_of(const Node& node, llvm::StringRef name);

// Checks operand counts and attributes against the record, then infers the types of the results.
Result<Types> infer(const OpCall& call);

// The registry, in the order of ir/ops/ops.def.
llvm::ArrayRef<const OpDef*> all_ops();
const OpDef* find_op(llvm::StringRef name);  // null when there is none
const OpDef& get_op(llvm::StringRef name);   // must exist

// Operand types of a node, for OpCall. The vector must outlive the call.
llvm::SmallVector<const Type*, 4> operand_types(const Graph& graph, const Node& node);
Types result_types(const Graph& graph, const Node& node);
double flops_of(const Graph& graph, const Node& node);

// The op on one of at least two chunks of the operands of `call`; at least one operand is cut. Returns none where the
// op wants the whole batch.
std::optional<ChunkCall> chunk_of(const OpDef& op, const OpCall& call, Chunk chunk);
Combine combine_of(const ChunkCall& call, size_t result);
// The op where one of its operands or results is cut among `ranks`; none where it wants whole operands.
std::optional<DividedCall> divide_call(const OpDef& op, const OpCall& call, llvm::ArrayRef<Type> results,
                                       const CutAt& known, int64_t ranks);
// Is result 0 a mean over the batch by the samples' weights?
bool is_weighted_mean(const Graph& graph, const Node& node);
// The weight of the samples behind a mean loss (how many labels counted), or None when the loss does not say.
ValueId find_sample_weight(const Graph& graph, ValueId loss);

}  // namespace plimsoll
