#include "runtime/cpu/fused.h"

#include "ir/fused_form.h"
#include "kernels/cpu/elementwise/binary.h"
#include "kernels/cpu/elementwise/blocks.h"
#include "kernels/cpu/elementwise/unary.h"
#include "runtime/kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

// The kernel of fused ops: their bodies as programs on blocks (kernels/cpu/elementwise/blocks.h), made when a plan is
// loaded. Functions are those that the ops run by themselves, so that fusing changes no bit.

namespace plimsoll {
namespace {

using cpu::BlockOperand;
using cpu::BlockProgram;
using cpu::BlockStep;
using cpu::RangeFn;

float* floats(void* y) { return static_cast<float*>(y); }
const float* floats(const void* x) { return static_cast<const float*>(x); }
uint8_t* bools(void* y) { return static_cast<uint8_t*>(y); }
const uint8_t* bools(const void* x) { return static_cast<const uint8_t*>(x); }
const int64_t* integers(const void* x) { return static_cast<const int64_t*>(x); }

// A function by its op. `integers` serves operands of i64, where there are such.
struct BlockFunction {
  const OpDef& op;
  RangeFn* range;
  RangeFn* integers = nullptr;
  llvm::StringLiteral a = "", b = "";  // attributes
};

#define PLIMSOLL_RANGE(call) \
  [](void* y, const void* const* x, int64_t n, float a, float b) { static_cast<void>(a), static_cast<void>(b), call; }
constexpr BlockFunction functions[] = {
#define PLIMSOLL_UNARY(op, Name, formula) {op_##op, PLIMSOLL_RANGE(cpu::op##_range(floats(y), floats(x[0]), n, a, b))},
#define PLIMSOLL_UNARY_WITH(op, Name, first, second, formula) \
  {op_##op, PLIMSOLL_RANGE(cpu::op##_range(floats(y), floats(x[0]), n, a, b)), nullptr, #first, #second},
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) \
  {op_##op, PLIMSOLL_RANGE(cpu::op##_range(floats(y), floats(x[0]), floats(x[1]), n))},
#define PLIMSOLL_BINARY(op, Name, formula) \
  {op_##op, PLIMSOLL_RANGE(cpu::op##_range(floats(y), floats(x[0]), floats(x[1]), 1, 1, n))},
#define PLIMSOLL_COMPARE(op, Name, formula)                                                 \
  {op_##op, PLIMSOLL_RANGE(cpu::op##_range(bools(y), floats(x[0]), floats(x[1]), 1, 1, n)), \
   PLIMSOLL_RANGE(cpu::op##_i64_range(bools(y), integers(x[0]), integers(x[1]), 1, 1, n))},
#define PLIMSOLL_LOGIC(op, Name, formula) \
  {op_##op, PLIMSOLL_RANGE(cpu::op##_range(bools(y), bools(x[0]), bools(x[1]), 1, 1, n))},
#define PLIMSOLL_BITWISE(op, Name, formula)
#include "kernels/elementwise.def"
    {op_not, PLIMSOLL_RANGE(cpu::logical_not(bools(y), bools(x[0]), n))},
};

// ---- Functions that choose by their attributes, or have no formula ----

constexpr RangeFn* gelu = PLIMSOLL_RANGE(cpu::gelu_range(floats(y), floats(x[0]), n, a, b));
constexpr RangeFn* gelu_tanh = PLIMSOLL_RANGE(cpu::gelu_tanh_range(floats(y), floats(x[0]), n, a, b));
constexpr RangeFn* gelu_grad = PLIMSOLL_RANGE(cpu::gelu_grad_range(floats(y), floats(x[0]), floats(x[1]), n));
constexpr RangeFn* gelu_tanh_grad = PLIMSOLL_RANGE(cpu::gelu_tanh_grad_range(floats(y), floats(x[0]), floats(x[1]), n));
constexpr RangeFn* clip = PLIMSOLL_RANGE(cpu::clip_range(floats(y), floats(x[0]), n, a, b));
constexpr RangeFn* mod = PLIMSOLL_RANGE(cpu::mod_range(floats(y), floats(x[0]), floats(x[1]), 1, 1, n));
constexpr RangeFn* fmod = PLIMSOLL_RANGE(cpu::fmod_range(floats(y), floats(x[0]), floats(x[1]), 1, 1, n));
constexpr RangeFn* add = PLIMSOLL_RANGE(cpu::add_range(floats(y), floats(x[0]), floats(x[1]), 1, 1, n));
#undef PLIMSOLL_RANGE

void select(void* y, const void* const* x, int64_t n, float, float) {
  const uint8_t* condition = bools(x[0]);
  const float *a = floats(x[1]), *b = floats(x[2]);
  for (int64_t i = 0; i < n; ++i) floats(y)[i] = condition[i] ? a[i] : b[i];
}

void is_nan(void* y, const void* const* x, int64_t n, float, float) {
  for (int64_t i = 0; i < n; ++i) bools(y)[i] = std::isnan(floats(x[0])[i]);
}

// a and b: whether infinities below and above 0 count.
void is_inf(void* y, const void* const* x, int64_t n, float a, float b) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = floats(x[0])[i];
    bools(y)[i] = std::isinf(value) && (value < 0 ? a : b) != 0;
  }
}

const BlockFunction* function_of(const OpDef& op) {
  const auto* found = std::find_if(std::begin(functions), std::end(functions),
                                   [&](const BlockFunction& each) { return &each.op == &op; });
  return found == std::end(functions) ? nullptr : found;
}

void set_function(BlockStep& step, const OpCall& call) {
  const double infinity = std::numeric_limits<double>::infinity();
  const llvm::StringRef op = call.op.name;
  if (const BlockFunction* function = function_of(call.op)) {
    step.range = call.operand(0).dtype == DType::I64 ? function->integers : function->range;
    if (!function->a.empty()) step.a = static_cast<float>(call.get_float(function->a));
    if (!function->b.empty()) step.b = static_cast<float>(call.get_float(function->b));
  } else if (op == "gelu") {
    step.range = is_tanh_form(call) ? gelu_tanh : gelu;
  } else if (op == "gelu_grad") {
    step.range = is_tanh_form(call) ? gelu_tanh_grad : gelu_grad;
  } else if (op == "clip") {
    step.range = clip;
    step.a = static_cast<float>(call.attrs.get_float("min", -infinity));
    step.b = static_cast<float>(call.attrs.get_float("max", infinity));
  } else if (op == "mod") {
    step.range = call.get_int("fmod") ? fmod : mod;
  } else if (op == "where") {
    step.range = select;
  } else if (op == "is_nan") {
    step.range = is_nan;
  } else if (op == "is_inf") {
    step.range = is_inf;
    step.a = call.get_int("negative") != 0, step.b = call.get_int("positive") != 0;
  }
}

// ---- Programs ----

class ProgramMaker {
 public:
  ProgramMaker(const Graph& body, const OpCall& call, llvm::ArrayRef<int64_t> shape) : body_(body) {
    add_iteration(call, shape);
    for (ValueId input : body.inputs) new_value(input);
    for (NodeId id : body.order()) add_node(body.node(id));
    for (const Output& output : body.outputs) {
      program_.results.push_back(number_[index_of(output.value)]);
      program_.result_types.push_back(scalar_of(body.type(output.value).dtype));
    }
    if (has_reductions(body)) add_reductions(llvm::cantFail(form_of(body)));
    place_buffers();
  }

  BlockProgram take() { return std::move(program_); }

 private:
  // Dimensions that every operand walks through without a jump are one.
  void add_iteration(const OpCall& call, llvm::ArrayRef<int64_t> shape) {
    std::vector<Shape> steps;
    for (size_t i = 0; i < call.count(); ++i)
      steps.push_back(is_random_counter(body_.type(body_.inputs[i])) ? Shape(shape.size(), 0)
                                                                     : read_steps(call, i, shape));
    std::vector<std::vector<int64_t>> strides(call.count());
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      bool joins = !program_.sizes.empty();
      for (size_t i = 0; i < steps.size() && joins; ++i) joins = strides[i].back() == steps[i][d] * shape[d];
      if (joins)
        program_.sizes.back() *= shape[d];
      else
        program_.sizes.push_back(shape[d]);
      for (size_t i = 0; i < steps.size(); ++i) {
        if (!joins) strides[i].push_back(0);
        strides[i].back() = steps[i][d];
      }
    }
    if (program_.sizes.empty()) {
      program_.sizes.push_back(1);
      for (std::vector<int64_t>& each : strides) each.push_back(1);
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const Type& type = body_.type(body_.inputs[i]);
      if (is_random_counter(type)) strides[i].clear();
      program_.operands.push_back({scalar_of(type.dtype), std::move(strides[i])});
    }
  }

  int new_value(ValueId value) {
    number_.resize(body_.value_count(), -1);
    return number_[index_of(value)] = values_++;
  }

  // A sum of many is a chain of sums of two, each in f32 and rounded at the end alone.
  void add_node(const Node& node) {
    const auto types = operand_types(body_, node);
    const OpCall call(*node.op, node.attrs, types);
    BlockStep step;
    step_of_[node.results[0]] = static_cast<int>(program_.steps.size());
    step.type = scalar_of(body_.type(node.results[0]).dtype);
    for (ValueId operand : node.operands) step.operands.push_back(number_[index_of(operand)]);
    if (node.op->name == "constant") {
      const Tensor& value = *node.attrs.get_tensor("value");
      step.kind = BlockStep::Kind::Constant;
      step.number = static_cast<float>(value.get(0)), step.integer = value.get_int(0);
    } else if (node.op->name == "cast" || node.op->name == "copy") {
      step.kind = BlockStep::Kind::Cast;
      step.from_type = scalar_of(call.operand(0).dtype);
    } else if (node.op->name == "dropout") {
      step.kind = BlockStep::Kind::Dropout;
      step.dropout = element_dropout(call.attrs), step.id = static_cast<uint32_t>(call.get_int("id"));
    } else if (is_body_reduction(*node.op)) {
      step.kind = BlockStep::Kind::Reduction;
    } else if (node.op->name == "add_n") {
      return add_sum(node, step);
    } else {
      set_function(step, call);
    }
    step.result = new_value(node.results[0]);
    program_.steps.push_back(std::move(step));
  }

  void add_sum(const Node& node, const BlockStep& like) {
    int sum = like.operands[0];
    for (size_t i = 1; i < like.operands.size(); ++i) {
      BlockStep step;
      step.range = add;
      step.operands = {sum, like.operands[i]};
      const bool is_last = i + 1 == like.operands.size();
      step.type = is_last ? like.type : Scalar::F32;
      sum = step.result = is_last ? new_value(node.results[0]) : values_++;
      program_.steps.push_back(std::move(step));
    }
    if (like.operands.size() == 1) number_[index_of(node.results[0])] = sum;
  }

  void add_reductions(const BodyForm& form) {
    cpu::BlockReductions& made = program_.reductions;
    made.outer = form.outer, made.length = form.length, made.inner = form.inner;
    for (const Output& output : body_.outputs) made.result_is_total.push_back(form.is_total[index_of(output.value)]);
    for (int pass = 0; pass < form.passes; ++pass) {
      for (NodeId id : reductions_of(body_, form, pass)) add_reduction(body_.node(id), pass);
      cpu::BlockReductions::Pass& steps = made.passes.emplace_back();
      for (NodeId id : element_nodes(body_, form, pass)) add_steps(steps.element_steps, body_.node(id));
      for (NodeId id : total_nodes(body_, form, pass + 1)) {
        const Node& node = body_.node(id);
        for (ValueId operand : node.operands) {
          const NodeId producer = body_.value(operand).producer;
          if (producer != NodeId::None && body_.node(producer).op->name == "constant")
            add_steps(steps.total_steps, body_.node(producer));
        }
        add_steps(steps.total_steps, node);
      }
    }
  }

  void add_reduction(const Node& node, int pass) {
    using Kind = cpu::BlockReduction::Kind;
    const llvm::StringRef op = node.op->name;
    const Kind kind = op == "reduce_sum" ? Kind::Sum : op == "reduce_mean" ? Kind::Mean : Kind::Max;
    program_.reductions.each.push_back({kind, number_[index_of(node.operands[0])], number_[index_of(node.results[0])],
                                        pass, scalar_of(body_.type(node.results[0]).dtype)});
  }

  // A sum of many has a step for each of its terms but the first.
  void add_steps(std::vector<int>& list, const Node& node) {
    const int first = step_of_[node.results[0]];
    const int count = node.op->name == "add_n" ? static_cast<int>(node.operands.size()) - 1 : 1;
    for (int step = first; step < first + count; ++step) list.push_back(step);
  }

  // A buffer is free again behind the last step that reads it. Totals have buffers of their own, since later passes
  // read them and compute elements anew.
  void place_buffers() {
    std::vector<int> last_use(static_cast<size_t>(values_), -1);
    for (size_t s = 0; s < program_.steps.size(); ++s)
      for (int operand : program_.steps[s].operands) last_use[static_cast<size_t>(operand)] = static_cast<int>(s);
    const int end = static_cast<int>(program_.steps.size());
    for (int result : program_.results) last_use[static_cast<size_t>(result)] = end;
    // Elements are added up behind all steps of a pass.
    for (const cpu::BlockReduction& reduction : program_.reductions.each)
      last_use[static_cast<size_t>(reduction.operand)] = end;
    program_.buffers.assign(static_cast<size_t>(values_), 0);
    std::vector<int> free;
    auto take = [&](int value) {
      if (free.empty()) free.push_back(program_.buffer_count++);
      program_.buffers[static_cast<size_t>(value)] = free.back();
      free.pop_back();
    };
    std::vector<bool> is_total(static_cast<size_t>(values_));
    for (const cpu::BlockReduction& reduction : program_.reductions.each)
      is_total[static_cast<size_t>(reduction.result)] = true;
    for (const auto& pass : program_.reductions.passes)
      for (int step : pass.total_steps)
        is_total[static_cast<size_t>(program_.steps[static_cast<size_t>(step)].result)] = true;
    for (int value = 0; value < values_; ++value)
      if (is_total[static_cast<size_t>(value)]) take(value);
    for (size_t i = 0; i < program_.operands.size(); ++i) take(static_cast<int>(i));
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      if (!is_total[static_cast<size_t>(program_.steps[s].result)]) take(program_.steps[s].result);
      std::vector<int> dead = program_.steps[s].operands;
      dead.push_back(program_.steps[s].result);
      std::sort(dead.begin(), dead.end());
      dead.erase(std::unique(dead.begin(), dead.end()), dead.end());
      for (int value : dead)
        if (last_use[static_cast<size_t>(value)] <= static_cast<int>(s) && !is_total[static_cast<size_t>(value)])
          free.push_back(program_.buffers[static_cast<size_t>(value)]);
    }
  }

  const Graph& body_;
  BlockProgram program_;
  std::vector<int> number_;         // by value of the body
  std::map<ValueId, int> step_of_;  // the first one that makes the value
  int values_ = 0;
};

struct PreparedBody : PreparedKernel {
  BlockProgram program;
  std::vector<const void*> operands;
  std::vector<void*> results;
};

BlockProgram program_of(const OpCall& call, llvm::ArrayRef<Type> results) {
  const FusedBody body = llvm::cantFail(fused_body(call.get_string("body")));
  const Shape shape = has_reductions(*body) ? llvm::cantFail(form_of(*body)).whole : results[0].shape;
  return ProgramMaker(*body, call, shape).take();
}

}  // namespace

Result<std::unique_ptr<PreparedKernel>> prepare_fused(cpu::Library&, const OpCall& call, llvm::ArrayRef<Type> results) {
  auto prepared = std::make_unique<PreparedBody>();
  prepared->program = program_of(call, results);
  prepared->operands.resize(call.count());
  prepared->results.resize(results.size());
  return prepared;
}

Status launch_fused(const CpuCall& k) {
  auto& prepared = *static_cast<PreparedBody*>(k.prepared);
  for (size_t i = 0; i < k.operands.size(); ++i)
    prepared.operands[i] = k.operands[i].as<char>() + read_start(k.call, i) * dtype_bytes(k.call.operand(i).dtype);
  for (size_t i = 0; i < k.results.size(); ++i) prepared.results[i] = k.results[i].data;
  const int64_t first_draw = k.call.get_int("first_draw");
  if (prepared.program.reductions.each.empty())
    cpu::run_blocks(prepared.program, first_draw, prepared.operands.data(), prepared.results.data());
  else
    cpu::run_reducing_blocks(prepared.program, first_draw, prepared.operands.data(), prepared.results.data(),
                             k.workspace);
  return Status::success();
}

int64_t fused_workspace(const OpCall& call, llvm::ArrayRef<Type> results) {
  const BlockProgram program = program_of(call, results);
  return program.reductions.each.empty() ? 0 : program.reductions.workspace_bytes();
}

bool accepts_fused(const OpCall& call, llvm::ArrayRef<Type> results) {
  const BlockProgram program = program_of(call, results);
  return program.buffer_count <= cpu::max_block_buffers && llvm::all_of(program.steps, [](const BlockStep& step) {
           return step.kind != BlockStep::Kind::Range || step.range;
         });
}

}  // namespace plimsoll
