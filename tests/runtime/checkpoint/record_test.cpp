#include "runtime/checkpoint/record.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

CheckpointRecord sample_record() {
  CheckpointRecord record;
  record.step = 123;
  record.sequence = 4;
  record.time = "2026-11-22T17:23:05Z";
  record.model = "gpt.onnx";
  record.weights_hash = "1f";
  record.seed = ~uint64_t{0};
  record.batches = 246;
  record.batch_samples = 8;
  record.plan = {{"precision", "fp16"}};
  record.metrics = {{"loss", 0.5}, {"scale", 65536}};
  record.files = {{"weights.safetensors", 10, 0xfedcba9876543210}, {"states.safetensors", 20, 1}};
  return record;
}

std::string failure_of(llvm::StringRef text) {
  Result<CheckpointRecord> record = parse_checkpoint_record(text);
  return record ? "" : take_diag(record.takeError()).text();
}

TEST_SUITE("unit") {
  TEST_CASE("checkpoint record: what was written is read") {
    const CheckpointRecord written = sample_record();
    Result<CheckpointRecord> read = parse_checkpoint_record(to_json(written));
    REQUIRE(bool(read));
    CHECK(read->step == 123);
    CHECK(read->sequence == 4);
    CHECK(read->seed == written.seed);
    CHECK(read->batches == 246);
    CHECK(read->batch_samples == 8);
    CHECK(read->plan == written.plan);
    CHECK(read->metrics == written.metrics);
    REQUIRE(read->files.size() == 2);
    CHECK(read->files[0].xxh64 == 0xfedcba9876543210);
    CHECK(to_json(*read) == to_json(written));
  }

  TEST_CASE("checkpoint record: every changed letter or digit is found") {
    const std::string good = to_json(sample_record());
    for (size_t i = 0; i < good.size(); ++i) {
      if (good[i] == ' ' || good[i] == '\n') continue;
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      CAPTURE(i);
      CHECK(failure_of(bad) != "");
    }
    for (size_t bytes = 0; bytes + 2 < good.size(); ++bytes) CHECK(failure_of(good.substr(0, bytes)) != "");
  }

  TEST_CASE("checkpoint record: errors say what is wrong") {
    CHECK(failure_of("[]") == "is no JSON object");
    CHECK(failure_of("{}") == "has no field 'format_version' of the right kind");
    CHECK(failure_of("{\"format_version\": 2}") == "has format version 2, this program reads 1");
    CHECK(failure_of("{\"format_version\": 1}") == "differs from its own checksum");
    CheckpointRecord outside = sample_record();
    outside.files[0].name = "../weights.safetensors";
    CHECK(failure_of(to_json(outside)) == "names an unknown file '../weights.safetensors'");
  }
}

}  // namespace
}  // namespace plimsoll
