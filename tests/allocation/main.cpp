// Counts the allocations of a running session: allocations MODEL.onnx DATA [BATCH], where BATCH is the size of a
// dimension "batch".
//
// This program replaces malloc and its relatives. Between the first step and the last, a call counts if its caller,
// past the C and C++ libraries, belongs to this program. Allocations of oneDNN and OpenMP for themselves do not count.

#include "frontend/api/job.h"
#include "passes/budget/budget_report.h"

#include "llvm/Support/raw_ostream.h"

#include <execinfo.h>
#include <link.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
int main() { return 77; }  // the sanitizer has a malloc of its own
#else

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

// Addresses of the code of this program and of the libraries that allocate for a caller.
struct CodeRanges {
  struct Range {
    uintptr_t begin, end;
  };
  std::array<Range, 8> program, passed_through;
  size_t programs = 0, passed = 0;

  static bool holds(const std::array<Range, 8>& ranges, size_t count, void* at) {
    auto address = reinterpret_cast<uintptr_t>(at);
    return std::any_of(ranges.begin(), ranges.begin() + count,
                       [&](Range r) { return r.begin <= address && address < r.end; });
  }
};

CodeRanges code;
std::atomic<bool> counting{false};
std::atomic<int64_t> counted{0};
std::array<void*, 16> first_frames;
int first_depth = 0;

int add_code(dl_phdr_info* info, size_t, void*) {
  llvm::StringRef name(info->dlpi_name);
  bool passed = name.contains("libc.so") || name.contains("libstdc++") || name.contains("libm.so");
  if (!name.empty() && !passed) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || !(header.p_flags & PF_X)) continue;
    CodeRanges::Range range{info->dlpi_addr + header.p_vaddr, info->dlpi_addr + header.p_vaddr + header.p_memsz};
    (passed ? code.passed_through[code.passed++] : code.program[code.programs++]) = range;
  }
  return 0;
}

// `caller` is the return address of malloc; nearer stack frames belong to this file.
void note(void* caller) {
  static thread_local bool inside = false;
  if (!counting.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  std::array<void*, 16> frames;
  int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  int at = static_cast<int>(std::find(frames.begin(), frames.begin() + depth, caller) - frames.begin());
  while (at < depth && CodeRanges::holds(code.passed_through, code.passed, frames[at])) ++at;
  if (at < depth && CodeRanges::holds(code.program, code.programs, frames[at]) && counted++ == 0) {
    first_frames = frames;
    first_depth = depth;
  }
  inside = false;
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) { return note(__builtin_return_address(0)), __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return note(__builtin_return_address(0)), __libc_calloc(count, bytes); }
void* realloc(void* at, size_t bytes) { return note(__builtin_return_address(0)), __libc_realloc(at, bytes); }
void* memalign(size_t alignment, size_t bytes) {
  return note(__builtin_return_address(0)), __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return note(__builtin_return_address(0)), __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  note(__builtin_return_address(0));
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}
}

namespace plimsoll {
namespace {

constexpr int steps = 4;

// The job accumulates and clips, so that both functions of a program run.
Result<std::unique_ptr<Session>> start(const std::string& model, int64_t batch) {
  CompileRequest request;
  request.model_path = model;
  if (batch > 0) request.import.dims["batch"] = batch;
  request.training.accumulate = 2;
  request.training.clip_grad_norm = 1;
  Result<Job> job = Job::open(request);
  if (!job) return job.takeError();
  Result<Plan> plan = fitting_plan(job->compile());
  if (!plan) return plan.takeError();
  Result<Weights> weights = open_weights(model);
  if (!weights) return weights.takeError();
  Result<std::unique_ptr<Session>> session = Session::create(std::move(*plan), {});
  if (!session) return session.takeError();
  if (Status s = (*session)->initialise(weights->load, 1, weights->load_range)) return s;
  return session;
}

// Returns how often the steps after the first allocated.
Result<int64_t> count_allocations(const std::string& model, const std::string& data, int64_t batch) {
  Result<std::unique_ptr<Session>> session = start(model, batch);
  if (!session) return session.takeError();
  Result<std::unique_ptr<BatchSource>> batches = open_data(data, (*session)->inputs(), {});
  if (!batches) return batches.takeError();
  for (int step = 0; step < steps; ++step) {
    counting = step > 0;
    Result<StepMetrics> metrics = (*session)->step(**batches);
    counting = false;
    if (!metrics) return metrics.takeError();
  }
  return counted.load();
}

bool counts_per_vector() {
  counting = true;
  std::vector<int> probe(100);
  asm volatile("" : : "r"(probe.data()) : "memory");
  counting = false;
  return counted.exchange(0) == 1;
}

int run(const std::string& model, const std::string& data, int64_t batch) {
  dl_iterate_phdr(add_code, nullptr);
  std::array<void*, 2> warm;
  backtrace(warm.data(), 2);  // the first call loads the unwinder
  if (!counts_per_vector()) {
    llvm::errs() << "the counter does not see the allocation of a vector\n";
    return 1;
  }
  Result<int64_t> allocations = count_allocations(model, data, batch);
  if (!allocations) {
    llvm::errs() << model << ": " << llvm::toString(allocations.takeError()) << "\n";
    return 1;
  }
  llvm::outs() << model << ": " << *allocations << " allocations in " << steps - 1 << " steps\n";
  if (*allocations == 0) return 0;
  llvm::outs().flush();
  backtrace_symbols_fd(first_frames.data(), first_depth, 2);
  return 1;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  if (argc == 3 || argc == 4) return plimsoll::run(argv[1], argv[2], argc == 4 ? std::atoi(argv[3]) : 0);
  llvm::errs() << "usage: allocations MODEL.onnx DATA [BATCH]\n";
  return 2;
}
#endif
