#include "runtime/data/token_reader.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

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
  llvm::StringRef path() const { return path_; }

 private:
  llvm::SmallString<128> path_;
};

std::vector<uint16_t> counting(uint16_t count) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

const Type window(DType::I64, {2, 8});

std::vector<InputSpec> specs(std::optional<int64_t> shift, int64_t count = 1000) {
  return {{"input_ids", window, false, IndexInput{"input_ids", count, true, false, {}}},
          {"labels", window, false, IndexInput{"labels", count, false, true, shift}}};
}

// How far the labels of the first batch are ahead of its tokens, which count up.
int64_t lead_of_labels(llvm::StringRef path, std::vector<InputSpec> inputs, const DataOptions& options = {}) {
  auto source = open_token_file(path, inputs, options);
  REQUIRE_MESSAGE(bool(source), llvm::toString(source.takeError()));
  Tensor tokens(window), labels(window);
  REQUIRE(!(*source)->next({tokens.view(), labels.view()}));
  for (int64_t i = 1; i < 16; ++i)
    CHECK(labels.get_int(i) - tokens.get_int(i) == labels.get_int(0) - tokens.get_int(0));
  return labels.get_int(0) - tokens.get_int(0);
}

std::string failure(llvm::StringRef path, std::vector<InputSpec> inputs, const DataOptions& options = {}) {
  auto source = open_token_file(path, inputs, options);
  if (!source) return take_diag(source.takeError()).text();
  Tensor tokens(window), labels(window);
  Status read = (*source)->next({tokens.view(), labels.view()});
  return read ? take_diag(std::move(read)).text() : "";
}

TEST_SUITE("unit") {
  TEST_CASE("token reader: labels hold the next token, or the same one where the model shifts them") {
    const TokenFile file(counting(600));
    CHECK(lead_of_labels(file.path(), specs(0)) == 1);
    CHECK(lead_of_labels(file.path(), specs(1)) == 0);
    CHECK(lead_of_labels(file.path(), specs(1), {.labels = LabelTokens::Next}) == 1);
    CHECK(lead_of_labels(file.path(), specs(std::nullopt), {.labels = LabelTokens::Same}) == 0);
  }

  TEST_CASE("token reader: a shift that the plan does not show is asked for") {
    const TokenFile file(counting(600));
    CHECK(failure(file.path(), specs(std::nullopt)).find("--labels same") != std::string::npos);
    CHECK(failure(file.path(), specs(2)).find("--labels same") != std::string::npos);
  }

  TEST_CASE("token reader: tokens that the model does not have are named with their place") {
    std::vector<uint16_t> tokens = counting(600);
    for (size_t i = 0; i < tokens.size(); i += 8) tokens[i] = 700;
    const TokenFile file(tokens);
    CHECK(failure(file.path(), specs(0, 701)) == "");
    const std::string text = failure(file.path(), specs(0, 700));
    CHECK_MESSAGE(text.find(" is 700, but 'input_ids' of the model has 700 different tokens") != std::string::npos,
                  text);
  }
}

}  // namespace
}  // namespace plimsoll
