#include "ir/machine/common_device.h"

#include "ir/op_def.h"

#include <doctest/doctest.h>

// What unlike devices have in common, with the numbers by hand.

namespace plimsoll {
namespace {

class ListedKernels : public KernelCatalog {
 public:
  ListedKernels(std::vector<KernelCandidate> kernels, KernelPreferences preferences)
      : kernels_(std::move(kernels)), preferences_(preferences) {}
  std::vector<KernelCandidate> candidates(const OpDef&, const OpCall&, llvm::ArrayRef<Type>) const override {
    return kernels_;
  }
  KernelPreferences preferences() const override { return preferences_; }

 private:
  std::vector<KernelCandidate> kernels_;
  KernelPreferences preferences_;
};

TEST_SUITE("unit") {
  TEST_CASE("of unlike devices the least decides in each field") {
    const DeviceCatalog known = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription large = llvm::cantFail(known.find("h200")), small = llvm::cantFail(known.find("rtx4090"));
    for (const DeviceDescription& all : {least_of({large, small}), least_of({small, large})}) {
      CHECK(all.memory_bytes == small.memory_bytes);
      CHECK(all.matmul_tflops_for(DType::BF16) == small.matmul_tflops_for(DType::BF16));
      CHECK(all.memory_gb_per_s == small.memory_gb_per_s);
      CHECK(all.launch_us == std::max(large.launch_us, small.launch_us));
      CHECK(all.compute_capability == 89);
      CHECK(all.link_gb_per_s == 0);                                  // the small one has none: through the host
      CHECK(all.host_copies_gb_per_s == large.host_copies_gb_per_s);  // of the small one no limit is known
      CHECK(all.reserve_bytes() >= std::max(large.reserve_bytes(), small.reserve_bytes()));
      CHECK(all.backend == "cuda");
      for (const char* op : {"linear", "conv", "layer_norm"})
        CHECK(all.efficiency_of(op) == std::min(large.efficiency_of(op), small.efficiency_of(op)));
    }
    CHECK(least_of({large, small}).name == "h200+rtx4090");
    CHECK(least_of({large}).name == "h200");
    CHECK(to_json(least_of({large})) == to_json(large));
    // A type that one of them does not multiply is none that all do.
    DeviceDescription old = small;
    llvm::erase_if(old.matmul_tflops, [](const auto& rate) { return rate.first == DType::BF16; });
    for (const auto& rate : least_of({large, old}).matmul_tflops) CHECK(rate.first != DType::BF16);
  }

  TEST_CASE("kernels that all devices have, with the largest workspace and the longest time") {
    const auto one = std::make_shared<ListedKernels>(
        std::vector<KernelCandidate>{{"warpgroup", 8, 1}, {"tiled", 16, 4}, {"plain", 0, 9}, {"reference"}},
        KernelPreferences{
            .channels_last = true, .product_multiple = 64, .product_epilogues = true, .exact_gelu_epilogues = true});
    const auto other =
        std::make_shared<ListedKernels>(std::vector<KernelCandidate>{{"tiled", 32, 3}, {"plain", 0, 0}, {"reference"}},
                                        KernelPreferences{.channels_last = true, .product_multiple = 8});
    const std::unique_ptr<KernelCatalog> all = common_catalog({one, other});
    const Type type(DType::F32, {4});
    const Attrs attrs;
    const Type* const operands[] = {&type};
    const OpCall call(*find_op("neg"), attrs, operands);
    std::string listed;
    for (const KernelCandidate& each : all->candidates(*find_op("neg"), call, {type}))
      listed += each.name + " " + std::to_string(each.workspace_bytes) + " " +
                std::to_string(std::lround(each.predicted_us)) + "; ";
    CHECK(listed == "tiled 32 4; plain 0 0; reference 0 0; ");
    CHECK(all->preferences().channels_last);
    CHECK(all->preferences().product_multiple == 64);
    CHECK_FALSE(all->preferences().product_epilogues);
    CHECK_FALSE(all->preferences().exact_gelu_epilogues);
  }
}

}  // namespace
}  // namespace plimsoll
