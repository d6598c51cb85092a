#include "runtime/data/batch_source.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <set>

namespace plimsoll {
namespace {

// A file of 16-bit tokens that is gone at the end of the test.
class TokenFile {
 public:
  explicit TokenFile(llvm::ArrayRef<uint16_t> tokens) {
    int file = 0;
    REQUIRE(!llvm::sys::fs::createTemporaryFile("tokens", "bin", file, path_));
    llvm::raw_fd_ostream out(file, /*shouldClose=*/true);
    out.write(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof tokens[0]);
  }
  ~TokenFile() { llvm::sys::fs::remove(path_); }
  std::string path() const { return path_.str().str(); }

 private:
  llvm::SmallString<128> path_;
};

std::vector<uint16_t> counting(uint16_t first, uint16_t count) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < count; ++i) tokens.push_back(static_cast<uint16_t>(first + i));
  return tokens;
}

const Type window(DType::I64, {2, 8});
const std::vector<InputSpec> with_labels = {{"input_ids", window}, {"attention_mask", window}, {"labels", window}};

struct Batch {
  Tensor tokens = Tensor(window), mask = Tensor(window), labels = Tensor(window);
};

Batch next_batch(BatchSource& source) {
  Batch batch;
  llvm::cantFail(source.next({batch.tokens.view(), batch.mask.view(), batch.labels.view()}));
  return batch;
}

std::unique_ptr<BatchSource> open(const std::string& path, const DataOptions& options) {
  return llvm::cantFail(open_data(path, with_labels, options));
}

std::vector<int64_t> row(const Tensor& tensor, int64_t index) {
  const llvm::SmallVector<int64_t, 8> all = tensor.ints();
  return {all.begin() + 8 * index, all.begin() + 8 * (index + 1)};
}

std::vector<InputSpec> specs(std::optional<int64_t> shift, int64_t count = 1000) {
  return {{"input_ids", window, false, IndexInput{"input_ids", count, true, false, {}}},
          {"labels", window, false, IndexInput{"labels", count, false, true, shift}}};
}

// How far the labels of the first batch are ahead of its tokens, which count up.
int64_t lead_of_labels(llvm::StringRef path, std::vector<InputSpec> inputs, const DataOptions& options = {}) {
  auto source = open_data(path, inputs, options);
  REQUIRE_MESSAGE(bool(source), llvm::toString(source.takeError()));
  Tensor tokens(window), labels(window);
  REQUIRE(!(*source)->next({tokens.view(), labels.view()}));
  for (int64_t i = 1; i < 16; ++i)
    CHECK(labels.get_int(i) - tokens.get_int(i) == labels.get_int(0) - tokens.get_int(0));
  return labels.get_int(0) - tokens.get_int(0);
}

std::string failure(llvm::StringRef path, std::vector<InputSpec> inputs, const DataOptions& options = {}) {
  auto source = open_data(path, inputs, options);
  if (!source) return take_diag(source.takeError()).text();
  Tensor tokens(window), labels(window);
  Status read = (*source)->next({tokens.view(), labels.view()});
  return read ? take_diag(std::move(read)).text() : "";
}

TEST_SUITE("unit") {
  TEST_CASE("token windows: labels hold the next token, or the same one where the model shifts them") {
    const TokenFile file(counting(0, 600));
    CHECK(lead_of_labels(file.path(), specs(0)) == 1);
    CHECK(lead_of_labels(file.path(), specs(1)) == 0);
    CHECK(lead_of_labels(file.path(), specs(1), {.labels = LabelTokens::Next}) == 1);
    CHECK(lead_of_labels(file.path(), specs(std::nullopt), {.labels = LabelTokens::Same}) == 0);
  }

  TEST_CASE("token windows: a shift that the plan does not show is asked for") {
    const TokenFile file(counting(0, 600));
    CHECK(failure(file.path(), specs(std::nullopt)).find("--labels same") != std::string::npos);
    CHECK(failure(file.path(), specs(2)).find("--labels same") != std::string::npos);
  }

  TEST_CASE("token windows: tokens that the model does not have are named with their place") {
    std::vector<uint16_t> tokens = counting(0, 600);
    for (size_t i = 0; i < tokens.size(); i += 8) tokens[i] = 700;
    const TokenFile file(tokens);
    CHECK(failure(file.path(), specs(0, 701)) == "");
    const std::string text = failure(file.path(), specs(0, 700));
    CHECK_MESSAGE(text.find(" is 700, but 'input_ids' of the model has 700 different tokens") != std::string::npos,
                  text);
  }

  TEST_CASE("token windows: a file that is cut short while it is read is an error with its place") {
    const TokenFile file(counting(0, 600));
    const std::unique_ptr<BatchSource> source = open(file.path(), {.labels = LabelTokens::Next});
    next_batch(*source);
    std::filesystem::resize_file(file.path(), 64);
    std::string text;
    for (int i = 0; i < 8 && text.empty(); ++i) {  // some batches were read ahead
      Batch batch;
      Status read = source->next({batch.tokens.view(), batch.mask.view(), batch.labels.view()});
      if (read) text = take_diag(std::move(read)).text();
    }
    CHECK_MESSAGE(text.find(file.path() + ": ends ") == 0, text);
    CHECK_MESSAGE(text.find(" bytes early, at byte ") != std::string::npos, text);
  }

  // 65 tokens are 8 windows of 8, and the label of the last.
  TEST_CASE("token windows: an epoch has each window once, and held-out windows are not trained with") {
    const TokenFile file(counting(0, 65));
    std::set<int64_t> seen;
    const auto source = open(file.path(), {.labels = LabelTokens::Next});
    CHECK(source->batches_per_epoch() == 4);
    for (int i = 0; i < 4; ++i) {
      const Batch batch = next_batch(*source);
      for (int64_t r = 0; r < 2; ++r) {
        CHECK(batch.tokens.get_int(8 * r) % 8 == 0);
        CHECK(seen.insert(batch.tokens.get_int(8 * r)).second);
        for (int64_t t = 0; t < 8; ++t) CHECK(batch.labels.get_int(8 * r + t) == batch.tokens.get_int(8 * r + t) + 1);
      }
    }
    DataOptions options{.hold_out = 0.25};
    options.labels = LabelTokens::Next;
    const auto training = open(file.path(), options);
    options.part = SamplePart::Kind::HeldOut;
    const auto held_out = open(file.path(), options);
    CHECK(training->batches_per_epoch() == 3);
    CHECK(held_out->batches_per_epoch() == 1);
    std::set<int64_t> trained;
    for (int i = 0; i < 3; ++i) {
      const Batch batch = next_batch(*training);
      for (int64_t r = 0; r < 2; ++r) trained.insert(batch.tokens.get_int(8 * r));
    }
    const Batch batch = next_batch(*held_out);
    for (int64_t r = 0; r < 2; ++r) CHECK(trained.insert(batch.tokens.get_int(8 * r)).second);
    CHECK(trained.size() == 8);
  }

  // 99 ends documents of 11 and 3 tokens with their ends: windows at 0 and 8 of the first, and one of the second.
  TEST_CASE("token windows: no window crosses the end of a document") {
    std::vector<uint16_t> tokens = counting(0, 10);
    tokens.push_back(99);
    for (uint16_t token : {50, 51, 99}) tokens.push_back(token);
    const TokenFile file(tokens);
    DataOptions options{.shuffle = false, .last_batch = LastBatch::Pad, .document_end = 99};
    options.labels = LabelTokens::Next;
    const auto source = open(file.path(), options);
    CHECK(source->batches_per_epoch() == 2);
    const Batch first = next_batch(*source), second = next_batch(*source);
    CHECK(row(first.tokens, 0) == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(row(first.labels, 0) == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(row(first.mask, 0) == std::vector<int64_t>(8, 1));
    CHECK(row(first.tokens, 1) == std::vector<int64_t>{8, 9, 99, 99, 99, 99, 99, 99});
    CHECK(row(first.labels, 1) == std::vector<int64_t>{9, 99, -100, -100, -100, -100, -100, -100});
    CHECK(row(first.mask, 1) == std::vector<int64_t>{1, 1, 1, 0, 0, 0, 0, 0});
    CHECK(row(second.tokens, 0) == std::vector<int64_t>{50, 51, 99, 99, 99, 99, 99, 99});
    CHECK(row(second.labels, 0) == std::vector<int64_t>{51, 99, -100, -100, -100, -100, -100, -100});
  }

  TEST_CASE("token windows: of several files the weights say how often an epoch reads each window") {
    const TokenFile low(counting(0, 17)), high(counting(1000, 33));  // 2 and 4 windows
    DataOptions options;
    options.labels = LabelTokens::Next;
    const auto source = open(low.path() + ":3," + high.path() + ":0.5", options);
    CHECK(source->batches_per_epoch() == 4);
    std::map<int64_t, int> reads;
    for (int i = 0; i < 4; ++i) {
      const Batch batch = next_batch(*source);
      for (int64_t r = 0; r < 2; ++r) ++reads[batch.tokens.get_int(8 * r)];
    }
    CHECK(reads == std::map<int64_t, int>{{0, 3}, {8, 3}, {1000, 1}, {1008, 1}});
    options.hold_out = 0.5;
    auto refused = open_data(low.path() + ":3", with_labels, options);
    REQUIRE_FALSE(bool(refused));
    CHECK(take_diag(refused.takeError()).text().find("--hold-out and weights") != std::string::npos);
  }
}

}  // namespace
}  // namespace plimsoll
