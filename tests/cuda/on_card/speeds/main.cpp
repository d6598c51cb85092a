#include "frontend/api/machine.h"
#include "ir/support/philox.h"
#include "runtime/cuda/cuda_catalog.h"
#include "runtime/cuda/loader.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"
#include "tests/support/kernel_calls.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

// Times every CUDA kernel on calls.txt, in f32 and in bf16, and sets what it moved beside a copy on the same card. A
// call stands many times in a row in one captured graph, on operands that take turns, so that none is found in the L2
// cache; the graph runs again and again until the clock of the host is exact enough.
//
// Usage: cuda_kernel_speeds [--json FILE] [OP | CALL ...]      all ops where none is named; a call is an op's name, a
// point and a word of calls.txt

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

constexpr int64_t rotation_bytes = int64_t{256} << 20;  // several times what any L2 holds
constexpr double graph_us = 2000, measured_us = 10000;
constexpr int64_t max_calls = 512;  // small operands stay in the cache; what they take is the launch
constexpr int repeats = 3;

struct Call {
  const OpDef& op;
  std::string name;  // of its first result: the op's own, or with a word for which call it is
  OpCall call;
  Types results;
  std::vector<int64_t> below;  // by operand: what integers are drawn below
};

struct Row {
  std::string call, kernel, shape;
  double us = 0, bytes = 0, flops = 0;

  double gb_per_s() const { return bytes / us / 1e3; }
  double tflops() const { return flops / us / 1e6; }
};

// These read of their first operand only what indices, labels or starts point at.
constexpr llvm::StringLiteral read_in_part[] = {"gather", "gather_elements", "gather_nd", "slice", "nll_loss"};

// What has to be read and written at least.
double bytes_of(const Call& c) {
  int64_t written = 0, read = 0;
  for (const Type& type : c.results) written += type.bytes();
  const bool in_part = llvm::is_contained(read_in_part, c.op.name);
  for (size_t i = 0; i < c.call.count(); ++i) {
    if (!c.call.has(i)) continue;
    const int64_t bytes = c.call.operand(i).bytes();
    read += in_part && i == 0 ? std::min(bytes, written) : bytes;
  }
  return static_cast<double>(read + written);
}

double flops_of(const Call& c) { return c.op.flops ? c.op.flops(c.call, c.results) : 0; }

std::vector<const Type*> all_types(const Call& c) {
  std::vector<const Type*> types;
  for (const Type& type : c.results) types.push_back(&type);
  for (size_t i = 0; i < c.call.count(); ++i)
    if (c.call.has(i)) types.push_back(&c.call.operand(i));
  return types;
}

// The largest tensor, and the dtypes of other floats: "f32[8192,3072] bf16".
std::string shape_of(const Call& c) {
  const std::vector<const Type*> types = all_types(c);
  const Type& largest = **std::max_element(types.begin(), types.end(),
                                           [](const Type* a, const Type* b) { return a->elements() < b->elements(); });
  std::string text = to_string(largest);
  for (DType dtype : {DType::F32, DType::BF16})
    if (dtype != largest.dtype && llvm::any_of(types, [&](const Type* type) { return type->dtype == dtype; }))
      text += " " + dtype_name(dtype).str();
  return text;
}

// `sets` times the slots of a plan of one instruction, one set behind the other, and `calls` instructions that go round
// them.
Plan rotated(const Plan& one, int64_t sets, int64_t calls) {
  Plan plan = one;
  const auto slots = static_cast<SlotId>(one.slots.size());
  Arena& arena = plan.arenas.front();
  for (int64_t set = 1; set < sets; ++set)
    for (Slot slot : one.slots) {
      slot.offset += set * one.arenas.front().bytes;
      plan.slots.push_back(std::move(slot));
    }
  arena.bytes = arena.persistent_bytes = sets * one.arenas.front().bytes;
  std::vector<Instruction>& instructions = plan.functions.front().instructions;
  for (int64_t i = 1; i < calls; ++i) {
    Instruction next = one.functions.front().instructions.front();
    const SlotId shift = static_cast<SlotId>(i % sets) * slots;
    for (SlotId& operand : next.operands)
      if (operand >= 0) operand += shift;
    for (SlotId& result : next.results) result += shift;
    if (next.workspace >= 0) next.workspace += shift;
    instructions.push_back(std::move(next));
  }
  return plan;
}

// Is this element of rows of `length` elements before the row's padding? Rows are from a quarter to the whole length.
bool is_before_padding(int64_t element, int64_t length) {
  const int64_t least = length / 4, row = element / length;
  return element % length < least + row * 37 % (length - least + 1);
}

// Random numbers, a block of them over and over: zeros flatter matrix units and memory.
void fill(const TensorView& view, int64_t below) {
  const Type block_type(view.type.dtype, {std::min<int64_t>(view.elements(), 1 << 18)});
  Tensor block(block_type);
  RandomStream stream{1, 0, 0};
  for (int64_t i = 0; i < block_type.elements(); ++i)
    if (is_float(view.type.dtype))
      block.view().set(i, stream.normal(i));
    else if (below < 0 && view.type.dtype == DType::Bool)
      block.view().set_int(i, is_before_padding(i, -below));
    else if (below < 0)
      block.view().set_int(i, i / -below);
    else
      block.view().set_int(i, static_cast<int64_t>(stream.uniform(i) * static_cast<double>(below)));
  const int64_t bytes = block_type.bytes(), all = view.type.bytes();
#pragma omp parallel for
  for (int64_t at = 0; at < all; at += bytes)
    std::memcpy(view.as<char>() + at, block.data(), static_cast<size_t>(std::min(bytes, all - at)));
}

Result<double> us_of_runs(Executor& executor, int64_t runs, SlotId last_slot) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < runs; ++i)
    if (Result<int64_t> run = executor.run(0); !run) return run.takeError();
  if (Status s = executor.read(last_slot, [](const TensorView&) { return Status::success(); })) return s;
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Of one run. The 256 bytes of `last_slot` are read to wait for the card.
Result<double> median_us(Executor& executor, SlotId last_slot) {
  Result<double> first = us_of_runs(executor, 1, last_slot);
  if (!first) return first.takeError();
  const auto runs = std::clamp<int64_t>(static_cast<int64_t>(measured_us / *first), 1, 1000);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    Result<double> us = us_of_runs(executor, runs, last_slot);
    if (!us) return us.takeError();
    times.push_back(*us / static_cast<double>(runs));
  }
  std::sort(times.begin(), times.end());
  return times[repeats / 2];
}

// Microseconds of one call. An error where a library has no such alternative.
Result<double> time_kernel(const Call& c, const KernelCandidate& kernel, const DeviceDescription& device) {
  const Plan one = plan_of({c.op, c.call, c.results, kernel.name, kernel.workspace_bytes}, device, /*guard_bytes=*/256);
  const int64_t sets = std::min(1 + rotation_bytes / one.arenas.front().bytes, max_calls);
  const double min_us = std::max(
      {bytes_of(c) / device.memory_gb_per_s / 1e3, flops_of(c) / device.matmul_tflops_for(DType::BF16) / 1e6, 1.0});
  const int64_t calls = std::max(sets, std::clamp<int64_t>(static_cast<int64_t>(graph_us / min_us), 4, max_calls));
  const Plan plan = rotated(one, sets, calls);
  Result<std::unique_ptr<Executor>> executor = Executor::create(plan, {});
  if (!executor) return executor.takeError();
  for (const Instruction& instruction :
       llvm::ArrayRef(plan.functions[0].instructions).take_front(static_cast<size_t>(sets)))
    for (size_t i = 0; i < instruction.operands.size(); ++i) {
      if (instruction.operands[i] < 0) continue;
      Status filled = (*executor)->write(instruction.operands[i], [&](const TensorView& view) {
        fill(view, c.below[i]);
        return Status::success();
      });
      if (filled) return filled;
    }
  Result<double> us = median_us(**executor, static_cast<SlotId>(one.slots.size() - 1));
  if (!us) return us.takeError();
  return *us / static_cast<double>(calls);
}

class Speeds {
 public:
  Speeds(const DeviceDescription& device, double copy_gb_per_s)
      : device_(device), catalog_(device, /*any_order=*/true), copy_gb_per_s_(copy_gb_per_s) {}

  void print_head() const {
    llvm::outs()
        << llvm::format("A copy on this card moves %.0f GB/s, read plus written.\n\n", copy_gb_per_s_)
        << "| call | kernel | tensors | us | GB/s | of a copy | TFLOP/s |\n|---|---|---|---:|---:|---:|---:|\n";
  }

  void time_graph(const Graph& graph, llvm::ArrayRef<llvm::StringRef> wanted) {
    for (NodeId id : graph.order()) {
      const Node& node = graph.node(id);
      const std::string& name = graph.value(node.results[0]).name;
      if (!wanted.empty() && !llvm::is_contained(wanted, node.op->name) && !llvm::is_contained(wanted, name)) continue;
      const auto types = operand_types(graph, node);
      std::vector<int64_t> below;
      for (ValueId operand : node.operands)
        below.push_back(operand == ValueId::None ? 1 : integers_below(graph.value(operand).name));
      time_call({*node.op, name, OpCall(*node.op, node.attrs, types), result_types(graph, node), below});
    }
  }

  void list_untimed() const {
    std::string untimed;
    for (const CudaCandidate* candidate : cuda_candidates())
      for (int algorithm = 0; algorithm < candidate->algorithms; ++algorithm) {
        const std::string kernel = candidate->op.name.str() + "/" + candidate->kernel_name(algorithm);
        if (!timed_.count(kernel)) untimed += " " + kernel;
      }
    llvm::outs() << "\nNot timed:" << (untimed.empty() ? " none" : untimed) << "\n";
  }

  Status write(const std::string& path, llvm::StringRef card) const {
    std::error_code failure;
    llvm::raw_fd_ostream file(path, failure);
    if (failure) return system_error(path + ": " + failure.message());
    llvm::json::OStream json(file, 1);
    json.object([&] {
      json.attribute("card", card);
      json.attribute("copy_gb_per_s", copy_gb_per_s_);
      json.attributeArray("calls", [&] {
        for (const Row& row : rows_)
          json.object([&] {
            json.attribute("call", row.call);
            json.attribute("kernel", row.kernel);
            json.attribute("shape", row.shape);
            json.attribute("us", row.us);
            json.attribute("bytes", row.bytes);
            json.attribute("gb_per_s", row.gb_per_s());
            json.attribute("of_copy", row.gb_per_s() / copy_gb_per_s_);
            json.attribute("tflops", row.tflops());
          });
      });
    });
    return Status::success();
  }

 private:
  // Calls that T does not touch are the same in every dtype, and timed once.
  void time_call(const Call& c) {
    std::string key = c.name;
    for (const Type* type : all_types(c)) key += " " + to_string(*type);
    if (!seen_.insert(key).second) return;
    for (const KernelCandidate& kernel : catalog_.candidates(c.op, c.call, c.results)) {
      if (kernel.name == "reference") continue;
      Row row{c.name, kernel.name, shape_of(c), 0, bytes_of(c), flops_of(c)};
      Result<double> us = time_kernel(c, kernel, device_);
      if (!us) {
        llvm::outs() << "| " << row.call << " | " << row.kernel << " | " << row.shape << " | "
                     << llvm::toString(us.takeError()) << " | | | |\n";
        continue;
      }
      row.us = *us;
      timed_.insert((c.op.name + "/" + kernel.name).str());
      print(row);
      rows_.push_back(std::move(row));
    }
  }

  // Arithmetic is told where it can be what takes the time.
  void print(const Row& row) const {
    llvm::outs() << "| " << row.call << " | " << row.kernel << " | " << row.shape
                 << llvm::format(" | %.1f | %.0f | %.2f | ", row.us, row.gb_per_s(), row.gb_per_s() / copy_gb_per_s_);
    if (row.flops > 16 * row.bytes) llvm::outs() << llvm::format("%.0f ", row.tflops());
    llvm::outs() << "|\n";
    llvm::outs().flush();
  }

  const DeviceDescription& device_;
  CudaCatalog catalog_;
  double copy_gb_per_s_;
  std::vector<Row> rows_;
  std::set<std::string> seen_, timed_;
};

Status time_all(CudaBackend& backend, const std::string& json, llvm::ArrayRef<llvm::StringRef> wanted) {
  CudaCard card;
  if (Status s = to_status(backend.measure_card(card))) return s;
  Result<DeviceDescription> device = find_device("auto", "");
  if (!device) return device.takeError();
  Speeds speeds(*device, card.copy_gb_per_s);
  speeds.print_head();
  for (DType dtype : {DType::F32, DType::BF16}) {
    Result<Program> program = kernel_calls("on_card/speeds/calls.txt", dtype);
    if (!program) return program.takeError();
    for (const Graph& graph : program->functions) speeds.time_graph(graph, wanted);
  }
  if (wanted.empty()) speeds.list_untimed();
  return json.empty() ? Status::success() : speeds.write(json, card.name);
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  std::vector<llvm::StringRef> wanted;
  for (int i = 1; i < argc; ++i)
    if (llvm::StringRef(argv[i]) == "--json" && i + 1 < argc)
      json = argv[++i];
    else if (find_op(llvm::StringRef(argv[i]).split('.').first))
      wanted.push_back(argv[i]);
    else
      return llvm::errs() << "usage: cuda_kernel_speeds [--json FILE] [OP | CALL ...]\n", 2;
  Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend();
  if (!backend) {
    llvm::outs() << "skipped: " << take_diag(backend.takeError()).text() << "\n";
    return 77;
  }
  Status status = time_all(**backend, json, wanted);
  if (!status) return 0;
  llvm::errs() << take_diag(std::move(status)).text() << "\n";
  return 1;
}
