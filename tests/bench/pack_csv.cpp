#include "passes/place/placement.h"

#include "llvm/Support/MemoryBuffer.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Packs instances of the dynamic storage allocation problem and prints one line
// each: pack_csv [--seconds S] [--align N] [--capacity BYTES] FILE.csv...
// A file has the header "id,lower,upper,size"; a buffer lives in [lower, upper).
// The search of an instance ends at a height within the capacity.

namespace {

using namespace plimsoll;

bool read_instance(const char* path, std::vector<Interval>& intervals) {
  auto file = llvm::MemoryBuffer::getFile(path);
  if (!file) return false;
  llvm::SmallVector<llvm::StringRef, 0> lines;
  (*file)->getBuffer().split(lines, '\n', -1, false);
  if (lines.empty() || lines[0].trim() != "id,lower,upper,size") return false;
  for (llvm::StringRef line : llvm::ArrayRef<llvm::StringRef>(lines).drop_front()) {
    llvm::SmallVector<llvm::StringRef, 4> cells;
    line.trim().split(cells, ',');
    int32_t lower, upper;
    int64_t bytes;
    if (cells.size() != 4 || cells[1].getAsInteger(10, lower) || cells[2].getAsInteger(10, upper) ||
        cells[3].getAsInteger(10, bytes))
      return false;
    intervals.push_back({bytes, lower, upper - 1});
  }
  return true;
}

// Tells whether two buffers that are alive at the same time share a byte.
bool collides(const std::vector<Interval>& intervals, const std::vector<int64_t>& offsets) {
  for (size_t i = 0; i < intervals.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (intervals[i].first <= intervals[j].last && intervals[j].first <= intervals[i].last &&
          offsets[i] < offsets[j] + intervals[j].bytes && offsets[j] < offsets[i] + intervals[i].bytes)
        return true;
  return false;
}

bool pack_file(const char* path, const PlacementOptions& options) {
  std::vector<Interval> intervals;
  if (!read_instance(path, intervals)) {
    std::fprintf(stderr, "%s: not an id,lower,upper,size table\n", path);
    return false;
  }
  auto start = std::chrono::steady_clock::now();
  Placement placement = place_intervals(intervals, options);
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const char* slash = std::strrchr(path, '/');
  std::printf("%-20s %7zu %14lld %14lld %8.4f %7.2f  %s\n", slash ? slash + 1 : path, intervals.size(),
              static_cast<long long>(placement.lower_bound_bytes), static_cast<long long>(placement.height_bytes),
              static_cast<double>(placement.height_bytes) / static_cast<double>(placement.lower_bound_bytes),
              seconds.count(), placement.method.c_str());
  std::fflush(stdout);
  if (!collides(intervals, placement.offsets)) return true;
  std::fprintf(stderr, "%s: two live buffers share a byte\n", path);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  PlacementOptions options;
  options.alignment = 1;
  options.seconds = 8;
  std::printf("%-20s %7s %14s %14s %8s %7s  %s\n", "instance", "n", "bound", "height", "ratio", "s", "method");
  bool ok = true;
  for (int i = 1; i < argc; ++i) {
    bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--seconds") == 0)
      options.seconds = std::atof(argv[++i]);
    else if (has_value && std::strcmp(argv[i], "--align") == 0)
      options.alignment = std::atoll(argv[++i]);
    else if (has_value && std::strcmp(argv[i], "--capacity") == 0)
      options.capacity_bytes = std::atoll(argv[++i]);
    else
      ok &= pack_file(argv[i], options);
  }
  return ok ? 0 : 1;
}
