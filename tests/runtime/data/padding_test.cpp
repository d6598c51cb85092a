#include "runtime/data/batch_source.h"
#include "runtime/data/safetensors.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>

using namespace plimsoll;

namespace {

Tensor list(std::vector<int64_t> numbers) {
  Tensor tensor(Type(DType::I64, {static_cast<int64_t>(numbers.size())}));
  for (size_t i = 0; i < numbers.size(); ++i) tensor.view().set_int(static_cast<int64_t>(i), numbers[i]);
  return tensor;
}

class Folder {
 public:
  Folder() { REQUIRE_FALSE(llvm::sys::fs::createUniqueDirectory("padding", folder_)); }
  ~Folder() { llvm::sys::fs::remove_directories(folder_); }
  std::string path(llvm::StringRef name = "") const { return (folder_ + "/" + name).str(); }

  std::string write(llvm::StringRef name, std::vector<std::pair<std::string, Tensor>> tensors) const {
    std::vector<TensorEntry> entries;
    for (const auto& [tensor_name, tensor] : tensors) entries.push_back({tensor_name, tensor.type()});
    size_t next = 0;
    llvm::cantFail(write_safetensors(path(name), entries, [&](const TensorEntry& entry, void* out) {
      std::memcpy(out, tensors[next++].second.data(), static_cast<size_t>(entry.type.bytes()));
      return Status::success();
    }));
    return path(name);
  }

 private:
  llvm::SmallString<64> folder_;
};

// Samples 10 11 12, 20 and 30 31 32 33 34, whose labels are the tens.
std::vector<std::pair<std::string, Tensor>> three_samples() {
  return {{"input_ids", list({10, 11, 12, 20, 30, 31, 32, 33, 34})},
          {"labels", list({1, 1, 1, 2, 3, 3, 3, 3, 3})},
          {"kind", list({7, 8, 9})},
          {"offsets", list({0, 3, 4, 9})}};
}

const Type row4(DType::I64, {3, 4});

std::vector<InputSpec> inputs() {
  return {{"input_ids", row4, false, IndexInput{"input_ids", 50, true, false, {}}},
          {"attention_mask", Type(DType::F32, {3, 4})},
          {"labels", row4, false, IndexInput{"labels", 5, false, true, {}}},
          {"kind", Type(DType::I64, {3})}};
}

struct Batch {
  std::vector<llvm::SmallVector<int64_t, 8>> values;
  int64_t items = 0;
};

using Numbers = llvm::SmallVector<int64_t, 8>;

Result<Batch> first_batch(llvm::StringRef path, llvm::ArrayRef<InputSpec> specs, DataOptions options) {
  options.shuffle = false;
  Result<std::unique_ptr<BatchSource>> source = open_data(path, specs, options);
  if (!source) return source.takeError();
  std::vector<Tensor> tensors;
  std::vector<TensorView> views;
  for (const InputSpec& spec : specs) tensors.emplace_back(spec.type);
  for (const Tensor& tensor : tensors) views.push_back(tensor.view());
  if (Status s = (*source)->next(views)) return s;
  Batch batch;
  for (const TensorView& view : views) {
    Numbers& numbers = batch.values.emplace_back();
    for (int64_t i = 0; i < view.elements(); ++i) numbers.push_back(static_cast<int64_t>(view.get(i)));
  }
  batch.items = (*source)->items_read();
  return batch;
}

std::string failure(llvm::StringRef path, llvm::ArrayRef<InputSpec> specs, const DataOptions& options = {}) {
  Result<Batch> batch = first_batch(path, specs, options);
  return batch ? "" : take_diag(batch.takeError()).text();
}

bool says(const std::string& text, llvm::StringRef part) {
  INFO(text);
  return llvm::StringRef(text).contains(part);
}

DataOptions cut() {
  DataOptions options;
  options.padding.emplace().longer = LongSample::Cut;
  return options;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("padding: samples become rows of the plan's length, with a mask, and labels that are ignored") {
    const Folder folder;
    const std::string path = folder.write("a.safetensors", three_samples());
    const Batch batch = llvm::cantFail(first_batch(path, inputs(), cut()));
    CHECK(batch.values[0] == Numbers{10, 11, 12, 0, 20, 0, 0, 0, 30, 31, 32, 33});
    CHECK(batch.values[1] == Numbers{1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1});
    CHECK(batch.values[2] == Numbers{1, 1, 1, -100, 2, -100, -100, -100, 3, 3, 3, 3});
    CHECK(batch.values[3] == Numbers{7, 8, 9});
    CHECK(batch.items == 8);  // of 12 tokens, 4 are padding
  }

  TEST_CASE("padding: the value, the label and the side are those that are asked for") {
    const Folder folder;
    const std::string path = folder.write("a.safetensors", three_samples());
    DataOptions options = cut();
    options.padding->value = 49;
    options.padding->side = PadSide::Left;
    std::vector<InputSpec> specs = inputs();
    specs[2].index->ignored = -1;
    const Batch batch = llvm::cantFail(first_batch(path, specs, options));
    CHECK(batch.values[0] == Numbers{49, 10, 11, 12, 49, 49, 49, 20, 30, 31, 32, 33});
    CHECK(batch.values[1] == Numbers{0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1});
    CHECK(batch.values[2] == Numbers{-1, 1, 1, 1, -1, -1, -1, 2, 3, 3, 3, 3});
  }

  TEST_CASE("padding: lengths of one tensor, elements of several dimensions, and shards") {
    const Folder folder;
    for (int64_t shard : {0, 1}) {
      Tensor frames(Type(DType::F32, {3, 2}));
      for (int64_t i = 0; i < 6; ++i) frames.view().set(i, static_cast<double>(10 * shard + i + 1));
      folder.write(shard == 0 ? "0.safetensors" : "1.safetensors",
                   {{"frames", frames}, {"frames.lengths", list({1, 2})}, {"label", list({0, 1})}});
    }
    const std::vector<InputSpec> specs = {{"frames", Type(DType::F32, {4, 2, 2})},
                                          {"frame_mask", Type(DType::I64, {4, 2})},
                                          {"label", Type(DType::I64, {4})}};
    const Batch batch = llvm::cantFail(first_batch(folder.path(), specs, {}));
    CHECK(batch.values[0] == Numbers{1, 2, 0, 0, 3, 4, 5, 6, 11, 12, 0, 0, 13, 14, 15, 16});
    CHECK(batch.values[1] == Numbers{1, 0, 1, 1, 1, 0, 1, 1});
  }

  TEST_CASE("padding: what does not fit is refused by name") {
    const Folder folder;
    const std::string path = folder.write("a.safetensors", three_samples());
    CHECK(says(failure(path, inputs()), "sample 2: 'labels' is 5 long, the plan takes 4; compile it for a longer"));
    DataOptions options = cut();
    options.padding->masks = {"mask"};
    CHECK(says(failure(path, inputs(), options), "the plan has no input 'mask'"));
    options.padding->masks = {"attention_mask:kind"};
    CHECK(says(failure(path, inputs(), options), "'attention_mask' f32[3,4] cannot be made from padding"));
    auto wrong = three_samples();
    wrong[3] = {"input_ids.offsets", list({0, 3, 4, 8})};
    CHECK(says(failure(folder.write("b.safetensors", wrong), inputs(), cut()),
               "'input_ids.offsets' does not say where the samples of 'input_ids' begin"));
    const std::string even = folder.write("c.safetensors", {{"kind", list({7, 8, 9})}});
    CHECK(says(failure(even, {{"kind", Type(DType::I64, {3})}}, cut()), "has samples of one length"));
  }

  TEST_CASE("padding: documents of a token file are one sample each") {
    const Folder folder;
    const std::vector<uint16_t> tokens = {1, 2, 99, 3, 99, 4, 5, 6, 7, 8, 99};
    std::ofstream(folder.path("a.bin"), std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(2 * tokens.size()));
    std::vector<InputSpec> specs = inputs();
    specs.pop_back();
    specs[1].type.dtype = DType::I64;
    specs[0].index->count = specs[2].index->count = 100;
    specs[2].index->shift = 1;
    DataOptions options = cut();
    options.document_end = 99;
    options.padding->value = 50;
    const Batch batch = llvm::cantFail(first_batch(folder.path("a.bin"), specs, options));
    CHECK(batch.values[0] == Numbers{1, 2, 99, 50, 3, 99, 50, 50, 4, 5, 6, 7});
    CHECK(batch.values[1] == Numbers{1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1});
    CHECK(batch.values[2] == Numbers{1, 2, 99, -100, 3, 99, -100, -100, 4, 5, 6, 7});
    CHECK(batch.items == 9);
    options.padding->side = PadSide::Left;
    const Batch left = llvm::cantFail(first_batch(folder.path("a.bin"), specs, options));
    CHECK(left.values[0] == Numbers{50, 1, 2, 99, 50, 50, 3, 99, 4, 5, 6, 7});
    CHECK(left.values[2] == Numbers{-100, 1, 2, 99, -100, -100, 3, 99, 4, 5, 6, 7});
    options.padding->longer = LongSample::Refuse;
    CHECK(says(failure(folder.path("a.bin"), specs, options), "the document at token 5 has 6 tokens"));
    options.document_end = -1;
    CHECK(says(failure(folder.path("a.bin"), specs, options), "--document-end says where they end"));
  }

  TEST_CASE("labels outside the model's classes are refused before the first step, with their place") {
    const Folder folder;
    folder.write("0.safetensors", {{"labels", list({0, 1, 2})}});
    folder.write("1.safetensors", {{"labels", list({4, -100, 5, 0})}});
    const std::vector<InputSpec> specs = {
        {"labels", Type(DType::I64, {1}), false, IndexInput{"labels", 5, false, true, {}}}};
    auto source = open_data(folder.path(), specs, {});
    REQUIRE(!source);
    CHECK(
        says(take_diag(source.takeError()).text(), "1.safetensors: sample 2: 'labels' is 5, the model has 5 classes"));
  }
}
