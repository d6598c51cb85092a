#include "runtime/data/token_file_check.h"

#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/ConvertUTF.h"
#include "llvm/Support/Path.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral other_formats[] = {
    ".txt",  ".md",  ".json", ".jsonl", ".ndjson", ".csv",  ".tsv",  ".parquet", ".arrow", ".feather", ".xml", ".html",
    ".gz",   ".zst", ".xz",   ".bz2",   ".zip",    ".tar",  ".tgz",  ".7z",      ".pt",    ".pth",     ".pkl", ".h5",
    ".hdf5", ".py",  ".toml", ".yaml",  ".yml",    ".onnx", ".plan", ".png",     ".jpg",   ".jpeg",    ".pdf", ".db"};

struct Magic {
  llvm::StringLiteral bytes, format;
};
constexpr Magic magics[] = {{"PAR1", "a Parquet table"},
                            {"ARROW1", "an Arrow table"},
                            {"\x1f\x8b\x08", "gzip"},
                            {"\x28\xb5\x2f\xfd", "Zstandard"},
                            {"PK\x03\x04", "a zip archive"},
                            {"\x93NUMPY", "a NumPy array"},
                            {"\x89HDF", "HDF5"},
                            {"SQLite format 3", "an SQLite database"},
                            {"\xfd"
                             "7zXZ",
                             "xz"},
                            {"BZh", "bzip2"}};

// Short files may be anything.
constexpr size_t least_bytes_to_judge = 64, most_bytes_to_judge = 4096;

Status refuse(llvm::StringRef path, const llvm::Twine& what) {
  return model_error(path + ": " + what +
                     " and no token file, which holds a number for each token, of 16 bits or, with .u32 in its name, "
                     "of 32; from Python: numpy.array(tokens, dtype=\"uint16\").tofile(\"tokens.bin\")");
}

// Tokens of 16 bits would hold a zero byte or one that is no character before long.
bool looks_like_text(llvm::StringRef bytes) {
  if (llvm::any_of(bytes,
                   [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t'; }))
    return false;
  // The last character may be cut.
  for (size_t cut = 0; cut < 4 && cut < bytes.size(); ++cut) {
    const auto* at = reinterpret_cast<const llvm::UTF8*>(bytes.begin());
    if (llvm::isLegalUTF8String(&at, reinterpret_cast<const llvm::UTF8*>(bytes.end() - cut))) return true;
  }
  return false;
}

// Tokens below 65,536 that were written with 32 bits have a zero in every second half.
bool looks_like_32_bits(llvm::StringRef bytes) {
  bool all_zero = true;
  for (size_t i = 0; i + 3 < bytes.size(); i += 4) {
    if (bytes[i + 2] != 0 || bytes[i + 3] != 0) return false;
    all_zero &= bytes[i] == 0 && bytes[i + 1] == 0;
  }
  return !all_zero;
}

}  // namespace

Status check_name_of_token_file(llvm::StringRef path) {
  const std::string extension = llvm::sys::path::extension(path).lower();
  if (!llvm::is_contained(other_formats, llvm::StringRef(extension))) return Status::success();
  return refuse(path, "is " + extension.substr(1));
}

Status check_bytes_of_token_file(const InputFile& file, int64_t token_bytes) {
  std::string bytes(std::min(static_cast<size_t>(file.bytes()), most_bytes_to_judge), '\0');
  if (Status s = file.read_at(0, bytes.data(), static_cast<int64_t>(bytes.size()))) return s;
  for (const Magic& magic : magics)
    if (starts_with(bytes, magic.bytes)) return refuse(file.path(), "is " + magic.format);
  if (bytes.size() < least_bytes_to_judge) return Status::success();
  if (looks_like_text(bytes)) return refuse(file.path(), "is text");
  if (token_bytes == 2 && looks_like_32_bits(bytes))
    return model_error(file.path() +
                       ": every second 16-bit number is 0, so that its tokens seem to have 32 bits; "
                       "files of such tokens have .u32 in their names");
  return Status::success();
}

}  // namespace plimsoll
