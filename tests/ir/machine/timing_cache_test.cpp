#include "ir/machine/timing_cache.h"
#include "ir/op_def.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

// Every op has two kernels and the reference.
class TwoKernels : public KernelCatalog {
 public:
  std::vector<KernelCandidate> candidates(const OpDef&, const OpCall&, llvm::ArrayRef<Type>) const override {
    return {{"first"}, {"second"}, {"reference"}};
  }
  KernelPreferences preferences() const override { return {true, 8, true}; }
};

TEST_SUITE("unit") {
  TEST_CASE("a timing cache survives its file and puts the faster kernel first") {
    const Type x(DType::F32, {2, 3});
    const Type* operands[] = {&x, nullptr};
    const Attrs attrs{{"axis", int64_t{1}}};
    const OpCall call(get_op("relu"), attrs, operands);
    TimingCache cache;
    cache.add("card", "relu", "first", call, 4);
    cache.add("card", "relu", "second", call, 3);
    cache.add("other", "relu", "second", call, 9);
    llvm::SmallString<64> path;
    REQUIRE(!llvm::sys::fs::createTemporaryFile("times", "jsonl", path));
    REQUIRE(!cache.save(path));
    Result<TimingCache> loaded = TimingCache::load(path);
    llvm::sys::fs::remove(path);
    REQUIRE(bool(loaded));
    CHECK(loaded->size() == 3);
    CHECK(loaded->find("card", "relu", "first", call) == 4.0);

    const Attrs none;
    auto times = std::make_shared<TimingCache>(std::move(*loaded));
    auto names = [&](const char* device, const OpCall& of) {
      std::string text;
      for (const KernelCandidate& c :
           timed_catalog(std::make_unique<TwoKernels>(), device, times)->candidates(get_op("relu"), of, {x}))
        text += c.name + " ";
      return text;
    };
    CHECK(names("card", call) == "second first reference ");
    CHECK(names("other", call) == "first second reference ");  // only one of two was measured
    CHECK(names("card", OpCall(get_op("relu"), none, operands)) == "first second reference ");
    const KernelPreferences preferences = timed_catalog(std::make_unique<TwoKernels>(), "card", times)->preferences();
    CHECK(preferences.channels_last);
    CHECK(preferences.product_multiple == 8);
    CHECK(preferences.product_epilogues);
  }

  TEST_CASE("a kernel that was never measured goes before no measured one because its prediction is shorter") {
    class Predicted : public KernelCatalog {
     public:
      std::vector<KernelCandidate> candidates(const OpDef&, const OpCall&, llvm::ArrayRef<Type>) const override {
        std::vector<KernelCandidate> all{{"first"}, {"second"}, {"third"}, {"reference"}};
        for (size_t i = 0; i < 3; ++i) all[i].predicted_us = 10 + static_cast<double>(i);
        return all;
      }
      KernelPreferences preferences() const override { return {}; }
    };
    const Type x(DType::F32, {2, 3});
    const Type* operands[] = {&x};
    const Attrs attrs;
    const OpCall call(get_op("relu"), attrs, operands);
    auto times = std::make_shared<TimingCache>();
    const auto names = [&] {
      std::string text;
      for (const KernelCandidate& c :
           timed_catalog(std::make_unique<Predicted>(), "card", times)->candidates(call.op, call, {x}))
        text += c.name + " ";
      return text;
    };
    times->add("card", "relu", "first", call, 15);
    CHECK(names() == "first second third reference ");
    times->add("card", "relu", "third", call, 14);
    CHECK(names() == "third second first reference ");
    times->add("card", "relu", "second", call, 13);
    times->add("card", "relu", "reference", call, 1);
    CHECK(names() == "second third first reference ");
  }

  TEST_CASE("a line of a timing cache that says nothing is named") {
    llvm::SmallString<64> path;
    REQUIRE(!llvm::sys::fs::createTemporaryFile("times", "jsonl", path));
    {
      std::error_code error;
      llvm::raw_fd_ostream out(path, error);
      out << "{\"call\": \"a\", \"us\": 1}\n{\"call\": \"b\", \"us\": -1}\n";
    }
    Result<TimingCache> loaded = TimingCache::load(path);
    llvm::sys::fs::remove(path);
    REQUIRE(!loaded);
    CHECK(take_diag(loaded.takeError()).text().find(":2: expected") != std::string::npos);
  }
}

}  // namespace
}  // namespace plimsoll
