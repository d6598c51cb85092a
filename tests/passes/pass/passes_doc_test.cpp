#include "passes/pipelines.h"

#include "passes/pass/pass_manager.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

// docs/passes.md is made from the records and the pipelines. PLIMSOLL_BLESS=1 writes it anew.

namespace plimsoll {
namespace {

std::string option_row(const PassOption& option) {
  const auto* number = std::get_if<int64_t>(&option.otherwise);
  const std::string otherwise =
      number ? std::to_string(*number) : std::get<llvm::StringLiteral>(option.otherwise).str();
  return "`" + option.name.str() + (otherwise.empty() ? "" : "=" + otherwise) + "`: " + option.summary.str();
}

std::string pass_row(const PassInfo& pass) {
  std::string row = "| `" + pass.name.str() + "` | " + (pass.stage == Stage::Forward ? "forward" : "any") + " | " +
                    (pass.keeps_result ? "equal" : "other") + " | " + pass.summary.str();
  for (const PassOption& option : pass.options) row += "; " + option_row(option);
  return row + " |\n";
}

std::string expected_doc() {
  std::string text =
      "# Passes\n\n"
      "This page is generated from the records of `passes/pass/passes.def` and from `passes/pipelines.cpp`.\n"
      "[add_a_pass.md](add_a_pass.md) says how to add one.\n\n"
      "| pass | stage | results | what it does |\n|---|---|---|---|\n";
  for (const PassInfo* pass : all_passes()) text += pass_row(*pass);
  TrainingRequest request;
  request.precision = "bf16";
  const KernelPreferences preferences{.channels_last = true,
                                      .product_multiple = 64,
                                      .product_epilogues = true,
                                      .exact_gelu_epilogues = true,
                                      .apart_biases = true,
                                      .norms_in_bodies = true,
                                      .left_product_size = 512};
  const std::pair<const char*, std::string> pipelines[] = {
      {"A model is cleaned once by", clean_pipeline.str()},
      {"then, until nothing changes, by", fixpoint_pipeline.str()},
      {"and at last by", finish_pipeline.str()},
      {"A copy of the model for evaluation first goes through", inference_pipeline.str()},
      {"Adapters, here of rank 8, come by", adapter_pipeline({.rank = 8})},
      {"Images go channels last, where the device's convolutions want that, by", layout_pipeline.str()},
      {"Before differentiation, here for bf16 on an H200, come", forward_pipeline(request, preferences)},
      {"Where no budget has the batch in chunks, each function of the training step begins with",
       whole_batch_pipeline.str()},
      {"and each goes through (join-dropouts where the plan keeps everything)",
       step_pipeline(request, preferences, ImageMoments::BesideProducts, true)},
      {"Behind sum-gathered and share-sorts elementwise ops are joined by", fuse_pipeline.str()}};
  text += "\n## Pipelines\n\n";
  for (const auto& [when, pipeline] : pipelines) text += std::string(when) + "\n```\n" + pipeline + "\n```\n";
  return text;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("docs/passes.md says what the records say") {
  const std::string path = std::string(PLIMSOLL_TEST_DATA) + "/../docs/passes.md";
  if (std::getenv("PLIMSOLL_BLESS")) std::ofstream(path) << expected_doc();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  CHECK_MESSAGE(text.str() == expected_doc(), "PLIMSOLL_BLESS=1 writes docs/passes.md anew");
}

TEST_SUITE_END();

}  // namespace plimsoll
