#include "frontend/onnx/save.h"
#include "tests/frontend/model_maker.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

// A folder that the destructor removes.
class ScratchFolder {
 public:
  ScratchFolder() { REQUIRE_FALSE(llvm::sys::fs::createUniqueDirectory("plimsoll-model-test", path_)); }
  ~ScratchFolder() { llvm::sys::fs::remove_directories(path_); }
  std::string file(llvm::StringRef name) const { return (path_ + "/" + name).str(); }
  void write(llvm::StringRef name, llvm::StringRef bytes) const {
    std::error_code error;
    llvm::raw_fd_ostream(file(name), error) << bytes;
    REQUIRE_FALSE(error);
  }

 private:
  llvm::SmallString<128> path_;
};

template <typename T>
std::string failure(Result<T> result) {
  return result ? "" : take_diag(result.takeError()).text();
}

std::string four_floats(float first) {
  float values[4] = {first, first + 1, first + 2, first + 3};
  return std::string(reinterpret_cast<const char*>(values), sizeof values);
}

Result<Tensor> load(const Model& model, llvm::StringRef name) {
  Result<WeightSource> weights = WeightSource::open(model);
  if (!weights) return weights.takeError();
  return weights->load(name);
}

Result<std::optional<Tensor>> keep(llvm::StringRef) { return std::nullopt; }

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("a file that is no model is refused in one line") {
  ScratchFolder folder;
  folder.write("a.onnx", "certainly not protobuf");
  CHECK(failure(Model::read(folder.file("a.onnx"))).find("not an ONNX model, or damaged") != std::string::npos);
  folder.write("b.onnx", "");
  CHECK(failure(Model::read(folder.file("b.onnx"))).find("it has no graph") != std::string::npos);
  CHECK(failure(Model::read(folder.file("c.onnx"))).find("No such file") != std::string::npos);
  ModelMaker newer(newest_opset + 1);
  CHECK(failure(Model::of(newer.proto(), "m.onnx")) ==
        "m.onnx: opset 25 is newer than 24, the newest known here; export with opset_version=24");
}

TEST_CASE("elements in typed fields read like raw bytes") {
  onnx::TensorProto proto;
  proto.set_name("h");
  proto.set_data_type(onnx::TensorProto::BFLOAT16);
  proto.add_dims(2);
  for (float value : {1.5F, -2.0F}) proto.add_int32_data(to_bf16(value));
  ExternalData none("");
  Result<Tensor> tensor = tensor_from_onnx(proto, none);
  REQUIRE(static_cast<bool>(tensor));
  CHECK(tensor->get(0) == 1.5);
  CHECK(tensor->get(1) == -2);
  Tensor last(Type(DType::BF16, {1}));
  REQUIRE_FALSE(bool(copy_range_from_onnx(proto, none, 1, last.view())));
  CHECK(last.get(0) == -2);
  proto.add_dims(1000000);
  CHECK(failure(tensor_from_onnx(proto, none)) == "h: bf16[2,1000000] needs 2000000 elements, the file has 2");
  proto.add_dims(INT64_MAX);
  CHECK(failure(tensor_from_onnx(proto, none)) == "h: bad dimension 9223372036854775807");
}

TEST_CASE("external weights are read where they lie") {
  ScratchFolder folder;
  folder.write("w.bin", four_floats(0) + four_floats(10));
  Model model = ModelMaker().external("w", {4}, "w.bin", 16).make(folder.file("m.onnx"));
  Result<Tensor> tensor = load(model, "w");
  REQUIRE(static_cast<bool>(tensor));
  CHECK(tensor->get(3) == 13);
  Tensor two(Type(DType::F32, {2}));
  REQUIRE_FALSE(bool(llvm::cantFail(WeightSource::open(model)).load_range("w", 1, two.view())));
  CHECK(two.get(0) == 11);
  CHECK(two.get(1) == 12);
}

TEST_CASE("external weights that cannot be used") {
  ScratchFolder folder;
  folder.write("w.bin", four_floats(0));
  auto load_from = [&](const std::string& location, int64_t offset) {
    return failure(load(ModelMaker().external("w", {4}, location, offset).make(folder.file("m.onnx")), "w"));
  };
  CHECK(load_from("w.bin", 0) == "");
  CHECK(load_from("w.bin", 8).find("w: needs 16 bytes from byte 8 of") == 0);
  CHECK(load_from("gone.bin", 0).find("w: cannot read its data file") == 0);
  CHECK(load_from("../w.bin", 0) == "w: external data at '../w.bin' is outside the model's folder");
  CHECK(load_from("/etc/passwd", 0) == "w: external data at '/etc/passwd' is outside the model's folder");
  Model absent = ModelMaker().external("w", {4}, "gone.bin", 0).make(folder.file("m.onnx"));
  CHECK(WeightSource::open(absent)->find("w")->place == Weight::Place::Absent);
}

TEST_CASE("a saved model has the new weights and the old rest") {
  ScratchFolder folder;
  ModelMaker maker;
  maker.weight("a", Tensor::of_ints({1, 2})).weight("b", Tensor::of_floats({3, 4}, DType::F32, {2}));
  auto change_b = [](llvm::StringRef name) -> Result<std::optional<Tensor>> {
    if (name != "b") return std::nullopt;
    return Tensor::of_floats({7, 8}, DType::F32, {2});
  };
  if (Status s = save_model(maker.make(), folder.file("saved.onnx"), change_b)) FAIL(take_diag(std::move(s)).text());
  Result<Model> saved = Model::read(folder.file("saved.onnx"));
  REQUIRE(static_cast<bool>(saved));
  CHECK(load(*saved, "a")->ints()[1] == 2);
  CHECK(load(*saved, "b")->get(0) == 7);
  CHECK_FALSE(llvm::sys::fs::exists(folder.file("saved.onnx.data")));
}

TEST_CASE("external weights are saved beside the model") {
  ScratchFolder folder;
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes += four_floats(static_cast<float>(4 * i));
  folder.write("w.bin", bytes);
  Model model =
      ModelMaker().external("w", {400}, "w.bin", 0).weight("s", Tensor::of_ints({5})).make(folder.file("m.onnx"));
  if (Status s = save_model(model, folder.file("saved.onnx"), keep)) FAIL(take_diag(std::move(s)).text());
  Result<Model> saved = Model::read(folder.file("saved.onnx"));
  REQUIRE(static_cast<bool>(saved));
  CHECK(WeightSource::open(*saved)->find("w")->place == Weight::Place::External);
  CHECK(load(*saved, "w")->get(399) == 399);
  CHECK(load(*saved, "s")->get(0) == 5);
}

TEST_CASE("a model that cannot be saved leaves no file") {
  ScratchFolder folder;
  auto wrong = [](llvm::StringRef) -> Result<std::optional<Tensor>> { return Tensor::of_ints({1, 2, 3}); };
  Model model = ModelMaker().weight("a", Tensor::of_ints({1, 2})).make();
  Status status = save_model(model, folder.file("saved.onnx"), wrong);
  REQUIRE(static_cast<bool>(status));
  CHECK(take_diag(std::move(status)).text() == "a: is i64[2], its new value i64[3]");
  CHECK_FALSE(llvm::sys::fs::exists(folder.file("saved.onnx")));
}

}  // namespace plimsoll
