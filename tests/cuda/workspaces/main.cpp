#include "frontend/api/machine.h"
#include "ir/support/strings.h"
#include "ir/support/units.h"
#include "runtime/cuda/cuda_catalog.h"
#include "runtime/cuda/loader.h"
#include "runtime/single_op_plan.h"
#include "tests/support/kernel_calls.h"

#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

// The workspaces that plans promise to cuDNN against what cuDNN then takes, for every call of calls.txt. Needs cuDNN
// and a card's description, not the card: cuDNN plans for any card, and generates its kernels for it.
//
// Usage: cuda_workspaces [DEVICE DESCRIPTION]   h200 and tests/cuda/workspaces/h200.json where nothing is given
//        cuda_workspaces --describe FILE        writes the description of the card in this machine

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

constexpr const char* h200_description = PLIMSOLL_TEST_DATA "/cuda/workspaces/h200.json";

class Workspaces {
 public:
  Workspaces(CudaBackend& backend, const DeviceDescription& device, std::string description)
      : backend_(backend),
        device_(device),
        catalog_(device, /*any_order=*/true),
        description_(std::move(description)) {}

  void check_graph(const Graph& graph) {
    for (NodeId id : graph.order()) {
      const Node& node = graph.node(id);
      const auto types = operand_types(graph, node);
      const OpCall call(*node.op, node.attrs, types);
      const Types results = result_types(graph, node);
      for (const KernelCandidate& kernel : catalog_.candidates(*node.op, call, results))
        if (is_cudnn(kernel.name)) check({*node.op, call, results, kernel.name, kernel.workspace_bytes}, graph.name);
    }
  }

  int failed() const { return failed_; }

 private:
  static bool is_cudnn(llvm::StringRef kernel) { return starts_with(kernel, "cudnn"); }

  void check(const OneInstruction& what, llvm::StringRef graph) {
    const std::string name =
        (what.op.name + "/" + what.kernel).str() + " of @" + graph.str() + ", " + to_string(what.call.operand(0));
    const Plan plan = plan_of(what, device_);
    std::vector<int64_t> taken;
    Status status = to_status(backend_.cudnn_workspaces(plan, description_, taken));
    if (status) {
      const std::string why = take_diag(std::move(status)).text();
      const bool is_fewer = why.find("no algorithm of rank") != std::string::npos;
      failed_ += !is_fewer;
      llvm::outs() << (is_fewer ? "none  " : "FAIL  ") << name << ": " << why << "\n";
      return;
    }
    const bool kept = taken.front() <= what.workspace_bytes;
    failed_ += !kept;
    llvm::outs() << (kept ? "ok    " : "FAIL  ") << name << ": takes " << format_bytes(taken.front()) << " of "
                 << format_bytes(what.workspace_bytes) << "\n";
  }

  CudaBackend& backend_;
  const DeviceDescription& device_;
  CudaCatalog catalog_;
  std::string description_;
  int failed_ = 0;
};

Status describe(CudaBackend& backend, llvm::StringRef path) {
  std::string description;
  if (Status s = to_status(backend.describe_card_to_cudnn(description))) return s;
  std::error_code failure;
  llvm::raw_fd_ostream file(path, failure);
  file << description << "\n";
  return failure ? system_error(path + ": " + failure.message()) : Status::success();
}

Status check_all(CudaBackend& backend, llvm::StringRef name, llvm::StringRef path) {
  llvm::ErrorOr<std::unique_ptr<llvm::MemoryBuffer>> description = llvm::MemoryBuffer::getFile(path);
  if (!description) return system_error(path + ": " + description.getError().message());
  Result<DeviceDescription> device = find_device(name, "");
  if (!device) return device.takeError();
  Workspaces workspaces(backend, *device, (*description)->getBuffer().str());
  for (DType dtype : {DType::F32, DType::BF16}) {
    Result<Program> program = kernel_calls("workspaces/calls.txt", dtype);
    if (!program) return program.takeError();
    for (const Graph& graph : program->functions) workspaces.check_graph(graph);
  }
  return workspaces.failed() ? system_error(std::to_string(workspaces.failed()) + " failed") : Status::success();
}

}  // namespace

int main(int argc, char** argv) {
  const bool describes = argc == 3 && llvm::StringRef(argv[1]) == "--describe";
  Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend(/*to_run=*/describes);
  if (!backend) {
    llvm::outs() << "skipped: " << take_diag(backend.takeError()).text() << "\n";
    return 77;
  }
  Status status = describes   ? describe(**backend, argv[2])
                  : argc == 3 ? check_all(**backend, argv[1], argv[2])
                              : check_all(**backend, "h200", h200_description);
  if (!status) return 0;
  llvm::errs() << take_diag(std::move(status)).text() << "\n";
  return 1;
}
