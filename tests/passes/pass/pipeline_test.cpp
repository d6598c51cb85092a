#include "passes/pass/pass_manager.h"

#include "ir/builder.h"
#include "ir/text.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace plimsoll {
namespace {

Graph chain() {
  Result<Graph> graph = parse_graph(R"(graph @g(%x: f32[2]) {
    %dead = exp(%x) : f32[2]
    %y = neg(%x) : f32[2]
    return %y
  })");
  REQUIRE(static_cast<bool>(graph));
  return std::move(*graph);
}

Result<bool> lie(Graph& graph, PassContext&) {
  Builder(graph).emit("exp", {graph.inputs[0]});
  return false;
}

Result<bool> fail(Graph&, PassContext&) { return model_error("%y: cannot go on"); }

const PassInfo lying{.name = "lie", .summary = "", .run = lie};
const PassInfo failing{.name = "fail", .summary = "", .run = fail};
const PassInfo forward_only{.name = "early", .summary = "", .stage = Stage::Forward, .run = lie};

std::string failure_of(const PassInfo& pass, Graph graph, const PipelineOptions& options) {
  CompileHooks hooks;
  hooks.pipeline = options;
  Result<bool> changed = PassManager(hooks).run(graph, Pipeline{{{&pass, {}}}});
  return changed ? "" : take_diag(changed.takeError()).text();
}

bool succeeds(Result<bool> changed) {
  if (!changed) llvm::consumeError(changed.takeError());
  return bool(changed);
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Says that every pass changes it, and counts how often it is verified.
class CountingSubject : public PassSubject {
 public:
  Result<bool> run(const PassInfo&, PassContext&) override { return true; }
  Status verify() const override {
    ++verified;
    return Status::success();
  }
  std::string to_text() const override { return ""; }
  void print(llvm::raw_ostream&) const override {}

  mutable int verified = 0;
};

// A folder of its own that goes away with it.
struct TemporaryFolder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "plimsoll_pipeline_test";
  TemporaryFolder() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directory(path);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("a pipeline's text reads back") {
  Result<Pipeline> pipeline = parse_pipeline("  dce ,fold-constants{keep=3  dense=1}, simplify");
  REQUIRE(static_cast<bool>(pipeline));
  CHECK(pipeline->to_text() == "dce, fold-constants{dense=1 keep=3}, simplify");

  const std::string rules = R"(insert-casts{rules="module:h\.\d{2}\."".* = fp32; op:exp = bf16" to=bf16})";
  pipeline = parse_pipeline(rules);
  REQUIRE(static_cast<bool>(pipeline));
  CHECK(pipeline->to_text() == rules);
}

TEST_CASE("a pass that hides a change is caught") {
  CHECK(failure_of(lying, chain(), {.check_answers = true}) == "lie: changed the graph and says it did not");
}

TEST_CASE("a forward pass refuses a training step") {
  Graph graph = chain();
  graph.node(graph.last_node()).phase = Phase::Backward;
  CHECK(failure_of(forward_only, graph, {}) == "early: works on forward graphs, and %y is backward");
}

TEST_CASE("programs that are estimated are verified before and behind a pipeline alone") {
  Result<Pipeline> pipeline = parse_pipeline("dce, cse, simplify");
  REQUIRE(static_cast<bool>(pipeline));
  CountingSubject usual, estimated;
  REQUIRE(succeeds(PassManager().run(usual, *pipeline)));
  CHECK(usual.verified == 4);
  REQUIRE(succeeds(PassManager().sparing().run(estimated, *pipeline)));
  CHECK(estimated.verified == 2);
}

TEST_CASE("a failing pass leaves a file that runs it again") {
  TemporaryFolder folder;
  CHECK(failure_of(failing, chain(), {.dump_dir = folder.path.string()}) == "fail: %y: cannot go on");
  CHECK(read(folder.path / "repro.ir") == "// run: fail\n" + to_text(chain()));
}

TEST_CASE("changes are dumped and printed, and steps can be left out") {
  TemporaryFolder folder;
  Result<Pipeline> pipeline = parse_pipeline("simplify, dce, cse, fold-constants");
  REQUIRE(static_cast<bool>(pipeline));
  std::string log;
  llvm::raw_string_ostream out(log);
  Graph graph = chain();
  CompileHooks hooks;
  hooks.pipeline = {
      .dump_dir = folder.path.string(), .print_after = {"dce"}, .stop_after = "cse", .skip = {"simplify"}, .log = &out};
  PassManager passes(hooks);
  REQUIRE(succeeds(passes.run(graph, *pipeline)));
  CHECK(passes.stopped());
  REQUIRE(passes.runs().size() == 2);
  CHECK(passes.runs()[0].pass == "dce");
  CHECK(passes.runs()[0].counters.at("removed") == 1);
  CHECK(!passes.runs()[1].changed);
  CHECK(out.str() == "// after dce: removed 1\n" + to_text(graph));
  CHECK(read(folder.path / "01-dce.ir") == to_text(graph));
  CHECK(!std::filesystem::exists(folder.path / "02-cse.ir"));
}

TEST_CASE("dumps of several pipelines are numbered on") {
  TemporaryFolder folder;
  CompileHooks hooks;
  hooks.pipeline.dump_dir = folder.path.string();
  PassManager first(hooks);
  Graph graph = chain();
  REQUIRE(succeeds(first.run(graph, "cse")));
  PassManager second = first;
  REQUIRE(succeeds(second.run(graph, "dce")));
  CHECK(std::filesystem::exists(folder.path / "02-dce.ir"));
}

TEST_SUITE_END();

}  // namespace plimsoll
