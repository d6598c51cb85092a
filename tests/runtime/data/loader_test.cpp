#include "runtime/data/loader.h"
#include "runtime/data/batch_source.h"
#include "runtime/data/safetensors.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <set>

using namespace plimsoll;

namespace {

// A folder of shards, each with `x`: f32[n,2] and `labels`: i32[n], whose numbers are those of the samples.
class Shards {
 public:
  explicit Shards(std::vector<int64_t> counts) {
    REQUIRE_FALSE(llvm::sys::fs::createUniqueDirectory("shards", folder_));
    int64_t sample = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      Tensor x(Type(DType::F32, {counts[i], 2})), labels(Type(DType::I32, {counts[i]}));
      for (int64_t row = 0; row < counts[i]; ++row, ++sample) {
        x.view().set(2 * row, static_cast<double>(sample));
        labels.view().set_int(row, sample);
      }
      const Tensor* tensors[] = {&x, &labels};
      size_t next = 0;
      llvm::cantFail(
          write_safetensors(path() + "/" + std::to_string(i) + ".safetensors",
                            {{"x", x.type()}, {"labels", labels.type()}}, [&](const TensorEntry& entry, void* out) {
                              std::memcpy(out, tensors[next++]->data(), static_cast<size_t>(entry.type.bytes()));
                              return Status::success();
                            }));
    }
  }
  ~Shards() { llvm::sys::fs::remove_directories(folder_); }
  std::string path() const { return folder_.str().str(); }

 private:
  llvm::SmallString<64> folder_;
};

std::vector<InputSpec> inputs_of(int64_t rows) {
  return {{"labels", Type(DType::I64, {rows})}, {"x", Type(DType::F32, {rows, 2})}};
}

// The labels of the next batch; checks that each row's `x` is of the same sample.
std::vector<int64_t> next_labels(BatchSource& source, int64_t rows) {
  Tensor labels(Type(DType::I64, {rows})), x(Type(DType::F32, {rows, 2}));
  llvm::cantFail(source.next({labels.view(), x.view()}));
  std::vector<int64_t> all;
  for (int64_t row = 0; row < rows; ++row) {
    all.push_back(labels.get_int(row));
    if (all.back() >= 0) CHECK(x.get(2 * row) == static_cast<double>(all.back()));
  }
  return all;
}

// Samples of one number each, and `edges`: i64[4], which all of them share.
class Graph : public Dataset {
 public:
  explicit Graph(std::atomic<int>& edge_reads) : edge_reads_(edge_reads) {}
  int64_t samples() const override { return 12; }
  llvm::ArrayRef<Field> fields() const override { return fields_; }
  std::string where() const override { return "graph"; }
  Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream&, ReadBuffers&) const override {
    if (field == 1) ++edge_reads_;
    for (int64_t i = 0; i < into.elements(); ++i)
      field == 1 ? into.set_int(i, 10 + i) : into.set(i, static_cast<double>(sample));
    return Status::success();
  }

 private:
  std::atomic<int>& edge_reads_;
  std::vector<Field> fields_{{"x", Type(DType::F32, {})}, {"edges", Type(DType::I64, {4}), false}};
};

std::unique_ptr<BatchSource> open(const Shards& shards, int64_t rows, const DataOptions& options = {}) {
  return llvm::cantFail(open_data(shards.path(), inputs_of(rows), options));
}

std::vector<std::vector<int64_t>> batches_of(BatchSource& source, int64_t rows, int count) {
  std::vector<std::vector<int64_t>> all;
  for (int i = 0; i < count; ++i) all.push_back(next_labels(source, rows));
  return all;
}

std::string failure_of(const Shards& shards, std::vector<InputSpec> inputs, const DataOptions& options = {}) {
  auto source = open_data(shards.path(), inputs, options);
  return source ? "" : take_diag(source.takeError()).text();
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("loader: an epoch has every sample once, over shards") {
    const Shards shards({7, 5});
    const auto source = open(shards, 4);
    CHECK(source->batches_per_epoch() == 3);
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::set<int64_t> seen;
      for (const auto& batch : batches_of(*source, 4, 3)) seen.insert(batch.begin(), batch.end());
      CHECK(seen.size() == 12);
    }
  }

  TEST_CASE("loader: any batch is found by its number, whatever the number of threads") {
    const Shards shards({30});
    const auto source = open(shards, 4, {.seed = 9, .threads = 1}), again = open(shards, 4, {.seed = 9, .threads = 3});
    const auto batches = batches_of(*source, 4, 20);
    CHECK(batches_of(*again, 4, 20) == batches);
    for (int64_t batch : {17, 3, 0, 19}) {
      llvm::cantFail(again->seek(batch));
      CHECK(next_labels(*again, 4) == batches[static_cast<size_t>(batch)]);
    }
  }

  TEST_CASE("loader: batches of many bytes, or of many small samples, are read by several threads") {
    CHECK(threads_for_batch(1 << 20, 64 * 3, 16) == 1);
    CHECK(threads_for_batch(int64_t{64} << 20, 64 * 3, 16) == 4);
    CHECK(threads_for_batch(4 << 20, 16384 * 3, 16) == 8);
    CHECK(threads_for_batch(4 << 20, 4096 * 3, 16) == 3);
    CHECK(threads_for_batch(int64_t{64} << 20, 16384 * 3, 1) == 1);
  }

  TEST_CASE("loader: large batches are copied by several threads") {
    const int64_t length = (int64_t{9} << 20) + 1;
    llvm::SmallString<64> path;
    REQUIRE_FALSE(llvm::sys::fs::createUniqueFile("large-%%%%%%.safetensors", path));
    const Type row(DType::F32, {1, length});
    llvm::cantFail(write_safetensors(path.str(), {{"x", row}}, [&](const TensorEntry&, void* out) {
      for (int64_t i = 0; i < length; ++i) static_cast<float*>(out)[i] = static_cast<float>(i);
      return Status::success();
    }));
    const auto source = llvm::cantFail(open_data(path.str(), {{"x", row}}, {.threads = 3}));
    Tensor x(row);
    llvm::cantFail(source->next({x.view()}));
    bool is_equal = true;
    for (int64_t i = 0; i < length; ++i) is_equal &= x.view().as<float>()[i] == static_cast<float>(i);
    CHECK(is_equal);
    llvm::sys::fs::remove(path);
  }

  TEST_CASE("loader: ranks read their own rows of the same batches") {
    const Shards shards({30});
    const auto whole = open(shards, 6), first = open(shards, 3, {.rank = 0, .ranks = 2}),
               second = open(shards, 3, {.rank = 1, .ranks = 2});
    for (int i = 0; i < 7; ++i) {
      std::vector<int64_t> rows = next_labels(*first, 3), others = next_labels(*second, 3);
      rows.insert(rows.end(), others.begin(), others.end());
      CHECK(rows == next_labels(*whole, 6));
    }
  }

  TEST_CASE("loader: samples that are one batch stay in the order of the file") {
    const Shards shards({2, 2});
    const auto source = open(shards, 4);
    for (const auto& batch : batches_of(*source, 4, 3)) CHECK(batch == std::vector<int64_t>{0, 1, 2, 3});
  }

  TEST_CASE("loader: what all samples share is read once for each batch that is read ahead, and stays") {
    std::atomic<int> edge_reads = 0;
    DataOptions options;
    options.shuffle = false;
    const auto source = llvm::cantFail(
        load_batches(std::make_unique<Graph>(edge_reads),
                     std::vector<InputSpec>{{"x", Type(DType::F32, {2})}, {"edges", Type(DType::I64, {4})}}, options));
    for (int64_t batch = 0; batch < 30; ++batch) {
      if (batch == 20) llvm::cantFail(source->seek(21)), ++batch;
      Tensor x(Type(DType::F32, {2})), edges(Type(DType::I64, {4}));
      llvm::cantFail(source->next({x.view(), edges.view()}));
      CHECK(x.get(1) == static_cast<double>((2 * batch + 1) % 12));
      CHECK(edges.get_int(0) == 10);
      CHECK(edges.get_int(3) == 13);
    }
    CHECK(edge_reads <= 4);
  }

  TEST_CASE("loader: samples that are exactly one batch are read once, and their batch has a number of its own") {
    std::atomic<int> edge_reads = 0;
    auto open_graph = [&](int64_t rows) {
      return llvm::cantFail(load_batches(
          std::make_unique<Graph>(edge_reads),
          std::vector<InputSpec>{{"x", Type(DType::F32, {rows})}, {"edges", Type(DType::I64, {4})}}, DataOptions{}));
    };
    const auto source = open_graph(12), other = open_graph(12), several = open_graph(6);
    CHECK(source->only_batch().has_value());
    CHECK(source->only_batch() != other->only_batch());
    CHECK(!several->only_batch());
    llvm::cantFail(source->next({}));
    llvm::cantFail(source->seek(5));
    Tensor x(Type(DType::F32, {12})), edges(Type(DType::I64, {4}));
    for (int i = 0; i < 3; ++i) {
      x.view().set(11, 0);
      llvm::cantFail(source->next({x.view(), edges.view()}));
      CHECK(x.get(11) == 11);
      CHECK(edges.get_int(3) == 13);
    }
    CHECK(source->items_read() == 4 * 12);
    other->wait();
    several->wait();
    CHECK(edge_reads <= 2 + 4);
  }

  TEST_CASE("loader: a padded batch has labels that are ignored") {
    const Shards shards({5});
    const auto source = open(shards, 4, {.shuffle = false, .last_batch = LastBatch::Pad});
    CHECK(source->batches_per_epoch() == 2);
    CHECK(source->samples_in(0) == 4);
    CHECK(source->samples_in(1) == 1);
    CHECK(next_labels(*source, 4) == std::vector<int64_t>{0, 1, 2, 3});
    CHECK(next_labels(*source, 4) == std::vector<int64_t>{4, -100, -100, -100});
    CHECK(next_labels(*source, 4) == std::vector<int64_t>{0, 1, 2, 3});
  }

  TEST_CASE("loader: held-out samples are those that training does not read") {
    const Shards shards({20});
    const auto training = open(shards, 4, {.hold_out = 0.2});
    const auto held_out = open(shards, 4, {.hold_out = 0.2, .part = SamplePart::Kind::HeldOut});
    CHECK(training->batches_per_epoch() == 4);
    CHECK(held_out->batches_per_epoch() == 1);
    std::set<int64_t> seen;
    for (const auto& batch : batches_of(*training, 4, 4)) seen.insert(batch.begin(), batch.end());
    CHECK(seen.size() == 16);
    for (int64_t label : next_labels(*held_out, 4)) CHECK(seen.insert(label).second);
  }

  TEST_CASE("loader: data that do not fit are refused by name") {
    const Shards shards({6});
    CHECK(failure_of(shards, inputs_of(8)).find("has 6 samples, one batch needs 8") != std::string::npos);
    CHECK(failure_of(shards, {{"y", Type(DType::F32, {4})}}).find("has no tensor 'y'") != std::string::npos);
    CHECK(failure_of(shards, {{"x", Type(DType::F32, {4, 3})}})
              .find("input 'x' is f32[2] per sample, the plan needs f32[3] per sample") != std::string::npos);
    CHECK(failure_of(shards, {{"x", Type(DType::F32, {4, 2})}}, {.last_batch = LastBatch::Pad})
              .find("cannot be padded") != std::string::npos);
  }

  TEST_CASE("loader: tokens without padding are counted, and rows of samples alone") {
    const Shards shards({5});
    const auto images = open(shards, 2, {.last_batch = LastBatch::Pad});
    std::vector<int64_t> counted;
    for (int i = 0; i < 3; ++i) {
      next_labels(*images, 2);
      counted.push_back(images->items_read());
    }
    CHECK(counted == std::vector<int64_t>{2, 4, 5});

    const Type type(DType::I64, {2, 3});
    const std::string path = shards.path() + "/tokens.safetensors";
    const Tensor ids(type), mask = Tensor::of_ints({1, 1, 0, 1, 0, 0});
    llvm::cantFail(write_safetensors(path, {{"attention_mask", type}, {"input_ids", type}},
                                     [&](const TensorEntry& entry, void* out) {
                                       std::memcpy(out, (entry.name == "input_ids" ? ids : mask).data(), 48);
                                       return Status::success();
                                     }));
    const auto count = [&](std::vector<InputSpec> inputs) {
      const auto source = llvm::cantFail(open_data(path, inputs, {}));
      std::vector<Tensor> tensors(inputs.size(), Tensor(type));
      std::vector<TensorView> views;
      for (const Tensor& tensor : tensors) views.push_back(tensor.view());
      llvm::cantFail(source->next(views));
      CHECK(source->item_name() == "tokens");
      return source->items_read();
    };
    CHECK(count({{"input_ids", type}}) == 6);
    CHECK(count({{"input_ids", type}, {"attention_mask", type}}) == 3);
  }

  TEST_CASE("loader: a number that the plan's dtype does not hold is named with its sample") {
    const Shards shards({300});
    const auto source =
        llvm::cantFail(open_data(shards.path(), {{"labels", Type(DType::U8, {100})}}, {.shuffle = false}));
    Tensor labels(Type(DType::U8, {100}));
    for (int i = 0; i < 2; ++i) llvm::cantFail(source->next({labels.view()}));
    const std::string failure = take_diag(source->next({labels.view()})).text();
    CHECK(failure.find("sample 256: input 'labels': 256 does not fit u8") != std::string::npos);
  }
}
