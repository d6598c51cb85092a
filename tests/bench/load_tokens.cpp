// What reading token windows takes: of the loader's thread, of pread alone, and of copying out of a mapping, each per
// batch of 16 windows of 1024 tokens at random places of a file that the page cache holds. docs/data.md has the
// numbers.
//
// Usage: load_tokens BATCHES

#include "ir/support/philox.h"
#include "runtime/data/batch_source.h"
#include "runtime/data/input_file.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

#include <sys/mman.h>
#include <cstring>
#include <ctime>

using namespace plimsoll;

namespace {

constexpr int64_t rows = 16, time_steps = 1024, file_windows = 32768, token_bytes = 2;
constexpr int64_t window_bytes = time_steps * token_bytes;

double cpu_us(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

int64_t window_at(uint32_t read) { return philox({read, 0, 0, 0}, 1, 2)[0] % file_windows; }

// Microseconds of this thread per batch.
template <typename Read>
double us_per_batch(int64_t batches, Read read) {
  const double start = cpu_us(CLOCK_THREAD_CPUTIME_ID);
  for (int64_t i = 0; i < batches * rows; ++i) read(window_at(static_cast<uint32_t>(i)) * window_bytes);
  return (cpu_us(CLOCK_THREAD_CPUTIME_ID) - start) / static_cast<double>(batches);
}

Status write_tokens(int file) {
  llvm::raw_fd_ostream out(file, /*shouldClose=*/true);
  std::vector<uint16_t> window(time_steps);
  for (int64_t i = 0; i < file_windows; ++i) {
    for (int64_t t = 0; t < time_steps; ++t)
      window[static_cast<size_t>(t)] = static_cast<uint16_t>((7 * t + i) % 50000);
    out.write(reinterpret_cast<const char*>(window.data()), window_bytes);
  }
  return Status::success();
}

Status measure(const std::string& path, int64_t batches) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  std::vector<char> window(window_bytes);
  Status failure = Status::success();
  const double pread_us = us_per_batch(batches, [&](int64_t at) {
    failure = llvm::joinErrors(std::move(failure), file->read_at(at, window.data(), window_bytes));
  });
  if (failure) return failure;
  std::error_code error;
  Result<llvm::sys::fs::file_t> fd = llvm::sys::fs::openNativeFileForRead(path);
  if (!fd) return fd.takeError();
  const llvm::sys::fs::mapped_file_region mapped(*fd, llvm::sys::fs::mapped_file_region::readonly,
                                                 static_cast<size_t>(file->bytes()), 0, error);
  if (error) return system_error(path + ": " + error.message());
  const double mapped_us =
      us_per_batch(batches, [&](int64_t at) { std::memcpy(window.data(), mapped.const_data() + at, window_bytes); });

  Tensor ids(Type(DType::I64, {rows, time_steps})), labels(ids.type());
  Result<std::unique_ptr<BatchSource>> source =
      open_data(path, {{"input_ids", ids.type()}, {"labels", labels.type()}}, {.labels = LabelTokens::Next});
  if (!source) return source.takeError();
  const double start = cpu_us(CLOCK_PROCESS_CPUTIME_ID);
  for (int64_t i = 0; i < batches; ++i)
    if (Status s = (*source)->next({ids.view(), labels.view()})) return s;
  const double loader_us = (cpu_us(CLOCK_PROCESS_CPUTIME_ID) - start) / static_cast<double>(batches);
  llvm::outs() << "per batch of " << rows << " x " << time_steps << " tokens: "
               << llvm::format("loader %.1f us, pread alone %.1f us, mapping %.1f us\n", loader_us, pread_us,
                               mapped_us);
  return Status::success();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    llvm::errs() << "usage: load_tokens BATCHES\n";
    return 2;
  }
  int file = 0;
  llvm::SmallString<128> path;
  if (llvm::sys::fs::createTemporaryFile("tokens", "bin", file, path)) return 1;
  const llvm::FileRemover remover(path);
  Status status = write_tokens(file);
  if (!status) status = measure(path.str().str(), std::atoi(argv[1]));
  if (!status) return 0;
  llvm::errs() << "load_tokens: " << llvm::toString(std::move(status)) << "\n";
  return 1;
}
