#include "ir/machine/common_device.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

class CommonCatalog : public KernelCatalog {
 public:
  explicit CommonCatalog(std::vector<std::shared_ptr<const KernelCatalog>> catalogs) : catalogs_(std::move(catalogs)) {}

  std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                          llvm::ArrayRef<Type> results) const override {
    std::vector<KernelCandidate> common = catalogs_.front()->candidates(op, call, results);
    for (const std::shared_ptr<const KernelCatalog>& catalog : llvm::drop_begin(catalogs_)) {
      const std::vector<KernelCandidate> others = catalog->candidates(op, call, results);
      llvm::erase_if(common, [&](KernelCandidate& own) {
        const auto other = llvm::find_if(others, [&](const KernelCandidate& each) { return each.name == own.name; });
        if (other == others.end()) return true;
        own.workspace_bytes = std::max(own.workspace_bytes, other->workspace_bytes);
        const bool predicted = own.predicted_us > 0 && other->predicted_us > 0;
        own.predicted_us = predicted ? std::max(own.predicted_us, other->predicted_us) : 0;
        return false;
      });
    }
    return common;
  }

  KernelPreferences preferences() const override {
    KernelPreferences all = catalogs_.front()->preferences();
    for (const std::shared_ptr<const KernelCatalog>& catalog : catalogs_) all = all.with(catalog->preferences());
    return all;
  }

 private:
  std::vector<std::shared_ptr<const KernelCatalog>> catalogs_;
};

}  // namespace

std::unique_ptr<KernelCatalog> common_catalog(std::vector<std::shared_ptr<const KernelCatalog>> catalogs) {
  return std::make_unique<CommonCatalog>(std::move(catalogs));
}

}  // namespace plimsoll
