#include "ir/support/did_you_mean.h"

#include <algorithm>

namespace plimsoll {

std::vector<std::string> did_you_mean(llvm::StringRef wanted, llvm::ArrayRef<llvm::StringRef> names, size_t count) {
  struct Near {
    size_t edits;
    llvm::StringRef name;
    bool operator<(const Near& other) const { return std::tie(edits, name) < std::tie(other.edits, other.name); }
  };
  auto limit = static_cast<unsigned>(wanted.size() / 3 + 1);
  std::vector<Near> near;
  for (llvm::StringRef name : names) {
    unsigned edits = wanted.edit_distance(name, /*AllowReplacements=*/true, limit);
    // A name that holds the whole word stands behind every misspelling, shorter ones first.
    if (edits <= limit)
      near.push_back({edits, name});
    else if (!wanted.empty() && name.contains_insensitive(wanted))
      near.push_back({limit + name.size(), name});
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> found;
  for (const Near& each : near)
    if (found.size() < count && (found.empty() || found.back() != each.name)) found.push_back(each.name.str());
  return found;
}

}  // namespace plimsoll
