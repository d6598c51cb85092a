#include "runtime/cuda/backend/paged_memory.h"

#include "ir/support/units.h"
#include "runtime/cuda/backend/driver.h"

#include <memory>
#include <vector>

// The driver maps an allocation only as a whole, so pages that windows show are allocations of their own; what lies
// between them is one each. They live as long as they are mapped.

namespace plimsoll {
namespace {

// Mapped memory, and addresses for more.
class Mapping {
 public:
  Mapping(const Arena& arena, llvm::StringRef what) : arena_(arena), addresses_(arena), what_(what) {}
  Mapping(const Mapping&) = delete;
  ~Mapping() {
    for (const Allocation& each : allocations_) driver()->release(each.handle);
    if (base_ == 0) return;
    for (const Range& range : mapped_) driver()->unmap(range.from, static_cast<size_t>(range.bytes));
    driver()->free(base_, static_cast<size_t>(addresses_.bytes()));
  }

  Status map() {
    if (!driver()) return system_error(what_ + ": the driver cannot map memory, which the plan's windows need");
    if (Status s = find_device()) return s;
    if (Status s = check(driver()->reserve(&base_, static_cast<size_t>(addresses_.bytes()), 0, 0, 0), "addresses"))
      return s;
    if (Status s = allocate()) return s;
    for (const Allocation& each : allocations_)
      if (Status s = map(each, each.first_page)) return s;
    for (const PageWindow& window : arena_.windows) {
      int64_t address = (addresses_.mapped_bytes + window.offset - windows_begin) / arena_.page_bytes;
      for (int64_t page : window.pages)
        if (Status s = map(allocations_[allocation_of_[mapped_page(arena_, page)]], address++)) return s;
    }
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (Status s = check(driver()->set_access(base_, static_cast<size_t>(addresses_.bytes()), &access, 1), "access"))
      return s;
    for (const Allocation& each : allocations_) driver()->release(each.handle);
    allocations_.clear();
    return Status::success();
  }

  std::byte* first_byte() const {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(base_)) + addresses_.lead_bytes;
  }

 private:
  struct Allocation {
    CUmemGenericAllocationHandle handle;
    int64_t first_page, pages;
  };
  struct Range {
    CUdeviceptr from;
    int64_t bytes;
  };

  Status check(CUresult result, llvm::StringRef of) const { return driver_status(result, what_ + ": " + of); }

  Status find_device() {
    int device = 0;
    if (Status s = cuda_status(cudaGetDevice(&device), what_)) return s;
    if (Status s = cuda_status(cudaFree(nullptr), what_)) return s;  // the driver's calls need a context
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    size_t smallest = 0;
    if (Status s = check(driver()->granularity(&smallest, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "pages"))
      return s;
    if (arena_.page_bytes % static_cast<int64_t>(smallest) == 0) return Status::success();
    return system_error(what_ + ": the plan has pages of " + llvm::Twine(arena_.page_bytes) +
                        " bytes, the card maps multiples of " + llvm::Twine(smallest));
  }

  Status allocate() {
    const auto pages = static_cast<size_t>(addresses_.mapped_bytes / arena_.page_bytes);
    std::vector<bool> is_shown(pages, false);
    for (const PageWindow& window : arena_.windows)
      for (int64_t page : window.pages) is_shown[static_cast<size_t>(mapped_page(arena_, page))] = true;
    allocation_of_.resize(pages);
    for (size_t page = 0, end; page < pages; page = end) {
      end = page + 1;
      while (!is_shown[page] && end < pages && !is_shown[end]) ++end;
      const auto count = static_cast<int64_t>(end - page);
      CUmemGenericAllocationHandle handle = 0;
      const CUresult made = driver()->create(&handle, static_cast<size_t>(count * arena_.page_bytes), &properties_, 0);
      if (made == CUDA_ERROR_OUT_OF_MEMORY) return out_of_memory();
      if (Status s = check(made, "pages")) return s;
      std::fill(allocation_of_.begin() + static_cast<int64_t>(page), allocation_of_.begin() + static_cast<int64_t>(end),
                allocations_.size());
      allocations_.push_back({handle, static_cast<int64_t>(page), count});
    }
    return Status::success();
  }

  Status out_of_memory() {
    for (const Allocation& each : allocations_) driver()->release(each.handle);
    allocations_.clear();
    return out_of_device_memory(addresses_.mapped_bytes, what_, "CUDA_ERROR_OUT_OF_MEMORY");
  }

  Status map(const Allocation& allocation, int64_t page) {
    const CUdeviceptr at = base_ + static_cast<CUdeviceptr>(page * arena_.page_bytes);
    const int64_t bytes = allocation.pages * arena_.page_bytes;
    if (Status s = check(driver()->map(at, static_cast<size_t>(bytes), 0, allocation.handle, 0), "pages")) return s;
    mapped_.push_back({at, bytes});
    return Status::success();
  }

  const Arena arena_;
  const ArenaAddresses addresses_;
  const std::string what_;
  CUmemAllocationProp properties_{};
  CUdeviceptr base_ = 0;
  std::vector<Allocation> allocations_;
  std::vector<size_t> allocation_of_;  // by page
  std::vector<Range> mapped_;
};

}  // namespace

Result<CudaMemory> paged_device_memory(const Arena& arena, llvm::StringRef what) {
  auto mapping = std::make_shared<Mapping>(arena, what);
  if (Status s = mapping->map()) return s;
  std::byte* at = mapping->first_byte();
  return CudaMemory(at, arena.bytes, [mapping = std::move(mapping)](void*) {});
}

}  // namespace plimsoll
