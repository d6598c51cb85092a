#pragma once

// An ONNX file: what it declares, and its weights wherever they lie. Reading it does not read weights
// in external files.

#include "frontend/onnx/tensor.h"

namespace plimsoll {

inline constexpr int64_t newest_opset = 24;

class Model {
 public:
  // Fails on a file that is no ONNX model, is cut short, or is newer than this build knows.
  static Result<Model> read(llvm::StringRef path);
  // The same for a model in memory; external data lies beside `path`.
  static Result<Model> of(onnx::ModelProto proto, llvm::StringRef path);

  const onnx::ModelProto& proto() const { return *proto_; }
  llvm::StringRef path() const { return path_; }
  int64_t opset() const { return opset_; }  // of the standard operators
  ExternalData& data() const { return *data_; }

 private:
  Model() = default;

  std::string path_;
  std::unique_ptr<onnx::ModelProto> proto_;
  std::unique_ptr<ExternalData> data_;
  int64_t opset_ = 0;
};

// The standard operators' domain has two spellings.
inline bool is_standard_domain(llvm::StringRef domain) { return domain.empty() || domain == "ai.onnx"; }

struct Weight {
  enum class Place : uint8_t { Inside, External, Absent };  // Absent: its external file is not there
  std::string name;
  Type type;
  Place place = Place::Inside;
};

// The initializers of a model by name. The model must outlive it.
class WeightSource {
 public:
  static Result<WeightSource> open(const Model& model);

  llvm::ArrayRef<Weight> weights() const { return weights_; }  // in the file's order
  const Weight* find(llvm::StringRef name) const;
  Result<Tensor> load(llvm::StringRef name) const;

 private:
  explicit WeightSource(const Model& model) : model_(&model) {}

  const Model* model_;
  std::vector<Weight> weights_;
  llvm::StringMap<int> index_;
};

}  // namespace plimsoll
