#include "runtime/cuda/backend/nccl.h"

#include "runtime/cuda/find_symbol.h"

#include <dlfcn.h>
#include <chrono>
#include <limits>
#include <thread>

namespace plimsoll {
namespace {

struct UniqueId {
  char bytes[sizeof(CudaRanksId)];
};
constexpr int success = 0;
enum class DataType : int { Int8 = 0, Int32 = 2, Int64 = 4, Half = 6, Float = 7, Double = 8, Bfloat16 = 9 };
enum class Reduction : int { Sum = 0 };

// ncclConfig_t of 2.18, which later versions read as far as it goes.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = undefined, cluster_size = undefined, min_blocks = undefined, max_blocks = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;

  static constexpr int undefined = std::numeric_limits<int>::min();
};

struct Functions {
  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank_config)(ncclComm** comm, int ranks, UniqueId id, int rank, Config* config);
  int (*comm_destroy)(ncclComm* comm);
  int (*comm_abort)(ncclComm* comm);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* in, void* out, size_t count, DataType dtype, Reduction op, ncclComm* comm,
                    cudaStream_t stream);
  int (*reduce_scatter)(const void* in, void* out, size_t count, DataType dtype, Reduction op, ncclComm* comm,
                        cudaStream_t stream);
  int (*all_gather)(const void* in, void* out, size_t count, DataType dtype, ncclComm* comm, cudaStream_t stream);
  int (*broadcast)(const void* in, void* out, size_t count, DataType dtype, int root, ncclComm* comm,
                   cudaStream_t stream);
  int (*reduce)(const void* in, void* out, size_t count, DataType dtype, Reduction op, int root, ncclComm* comm,
                cudaStream_t stream);
  int (*send)(const void* in, size_t count, DataType dtype, int peer, ncclComm* comm, cudaStream_t stream);
  int (*receive)(void* out, size_t count, DataType dtype, int peer, ncclComm* comm, cudaStream_t stream);
  const char* (*error_string)(int result);
  // Null before NCCL 2.27.
  int (*mem_alloc)(void** at, size_t bytes);
  int (*mem_free)(void* at);
  int (*window_register)(ncclComm* comm, void* at, size_t bytes, void** window, int flags);
};
constexpr int symmetric_window = 1;

// The program has opened the library, wherever it lies.
Functions& functions() {
  static Functions table;
  return table;
}

Status open() {
  static const bool opened = [] {
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    Functions& f = functions();
    if (library && find_symbol(library, "ncclCommWindowRegister", f.window_register)) {
      find_symbol(library, "ncclMemAlloc", f.mem_alloc);
      find_symbol(library, "ncclMemFree", f.mem_free);
    }
    return library && find_symbol(library, "ncclGetUniqueId", f.get_unique_id) &&
           find_symbol(library, "ncclCommInitRankConfig", f.comm_init_rank_config) &&
           find_symbol(library, "ncclCommDestroy", f.comm_destroy) &&
           find_symbol(library, "ncclCommAbort", f.comm_abort) &&
           find_symbol(library, "ncclGroupStart", f.group_start) && find_symbol(library, "ncclGroupEnd", f.group_end) &&
           find_symbol(library, "ncclAllReduce", f.all_reduce) &&
           find_symbol(library, "ncclReduceScatter", f.reduce_scatter) &&
           find_symbol(library, "ncclAllGather", f.all_gather) && find_symbol(library, "ncclBroadcast", f.broadcast) &&
           find_symbol(library, "ncclReduce", f.reduce) && find_symbol(library, "ncclSend", f.send) &&
           find_symbol(library, "ncclRecv", f.receive) && find_symbol(library, "ncclGetErrorString", f.error_string);
  }();
  if (opened) return Status::success();
  return system_error(
      "NCCL (libnccl.so.2) is not found, which plans for several GPUs need; install it, or name its folder in "
      "PLIMSOLL_CUDA_PATH");
}

Status nccl_status(int result, llvm::StringRef what) {
  if (result == success) return Status::success();
  return system_error(what + ": NCCL: " + functions().error_string(result));
}

DataType data_type_of(DType dtype) {
  switch (dtype) {
    case DType::F16: return DataType::Half;
    case DType::BF16: return DataType::Bfloat16;
    case DType::F64: return DataType::Double;
    case DType::I32: return DataType::Int32;
    case DType::I64: return DataType::Int64;
    default: return DataType::Float;
  }
}

}  // namespace

Nccl::~Nccl() {
  if (ncclComm* comm = comm_.exchange(nullptr)) functions().comm_destroy(comm);
  // A program that exits beside a communicator that is being aborted crashes; one whose card hangs must not wait.
  constexpr std::chrono::seconds longest{2};
  if (aborted_.valid()) aborted_.wait_for(longest);
}

// NCCL raises its flag first, at which kernels end, and returns only once no captured graph knows the communicator; the
// graphs are destroyed by whoever waits for them.
void Nccl::abort() {
  ncclComm* comm = comm_.exchange(nullptr);
  if (!comm) return;
  std::promise<void> done;
  aborted_ = done.get_future();
  std::thread([comm, done = std::move(done)]() mutable {
    functions().comm_abort(comm);
    done.set_value();
  }).detach();
}

Status Nccl::make_id(CudaRanksId& id) {
  if (Status s = open()) return s;
  UniqueId made;
  if (Status s = nccl_status(functions().get_unique_id(&made), "ranks")) return s;
  std::copy(std::begin(made.bytes), std::end(made.bytes), id.begin());
  return Status::success();
}

Status Nccl::join(const CudaGroup& group) {
  if (Status s = open()) return s;
  UniqueId id;
  std::copy(group.id.begin(), group.id.end(), id.bytes);
  rank_ = group.rank;
  ranks_ = group.ranks;
  ncclComm* comm = nullptr;
  Config config;
  // In arenas NCCL would take 7 to 9 blocks. On two H100, 16 made steps of GPT-2 with 1.5 B parameters 1 % shorter, and
  // one of 124 M not longer.
  if (group.shares_arenas) config.min_blocks = config.max_blocks = multiprocessors_of(group);
  Status joined = nccl_status(functions().comm_init_rank_config(&comm, group.ranks, id, group.rank, &config), "ranks");
  comm_ = comm;
  return joined;
}

int Nccl::multiprocessors_of(const CudaGroup& group) { return group.ranks <= 1 ? 0 : group.shares_arenas ? 16 : 24; }

CudaMemory Nccl::shareable_memory(int64_t bytes) {
  void* at = nullptr;
  if (bytes == 0 || !functions().mem_alloc || !functions().mem_free) return {};
  if (functions().mem_alloc(&at, static_cast<size_t>(bytes)) != success) {
    cudaGetLastError();
    return {};
  }
  return CudaMemory(at, bytes, [](void* memory) { functions().mem_free(memory); });
}

Status Nccl::share(const CudaMemory& memory) const {
  void* window = nullptr;  // goes with the communicator
  return nccl_status(
      functions().window_register(comm_, memory.data(), static_cast<size_t>(memory.bytes()), &window, symmetric_window),
      "sharing memory");
}

Status Nccl::begin_group() const { return nccl_status(functions().group_start(), "group"); }
Status Nccl::end_group() const { return nccl_status(functions().group_end(), "group"); }

Status Nccl::reduce_all(void* out, const void* in, int64_t elements, DType dtype, cudaStream_t stream) const {
  return nccl_status(functions().all_reduce(in, out, static_cast<size_t>(elements), data_type_of(dtype), Reduction::Sum,
                                            comm_, stream),
                     "reduce_all");
}

Status Nccl::reduce_pieces(void* piece, const void* in, int64_t elements, DType dtype, cudaStream_t stream) const {
  return nccl_status(functions().reduce_scatter(in, piece, static_cast<size_t>(elements), data_type_of(dtype),
                                                Reduction::Sum, comm_, stream),
                     "reduce_pieces");
}

Status Nccl::gather_pieces(void* out, const void* piece, int64_t bytes, cudaStream_t stream) const {
  return nccl_status(functions().all_gather(piece, out, static_cast<size_t>(bytes), DataType::Int8, comm_, stream),
                     "gather_pieces");
}

Status Nccl::broadcast(void* out, const void* in, int64_t bytes, int64_t root, cudaStream_t stream) const {
  return nccl_status(
      functions().broadcast(in, out, static_cast<size_t>(bytes), DataType::Int8, static_cast<int>(root), comm_, stream),
      "broadcast");
}

Status Nccl::reduce_root(void* out, const void* in, int64_t elements, DType dtype, int64_t root,
                         cudaStream_t stream) const {
  return nccl_status(functions().reduce(in, out, static_cast<size_t>(elements), data_type_of(dtype), Reduction::Sum,
                                        static_cast<int>(root), comm_, stream),
                     "reduce_root");
}

Status Nccl::send(const void* in, int64_t bytes, int64_t to, cudaStream_t stream) const {
  return nccl_status(
      functions().send(in, static_cast<size_t>(bytes), DataType::Int8, static_cast<int>(to), comm_, stream), "send");
}

Status Nccl::receive(void* out, int64_t bytes, int64_t from, cudaStream_t stream) const {
  return nccl_status(
      functions().receive(out, static_cast<size_t>(bytes), DataType::Int8, static_cast<int>(from), comm_, stream),
      "receive");
}

}  // namespace plimsoll
