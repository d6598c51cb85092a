#pragma once

// An ONNX file: its declarations, and its weights inside or beside it. Reading the model does not read external
// weights.

#include "frontend/onnx/tensor.h"

namespace plimsoll {

inline constexpr int64_t newest_opset = 24;

class Model {
 public:
  // Fails if the file is not an ONNX model, is truncated, or is newer than this build supports.
  static Result<Model> read(llvm::StringRef path);
  // Parses a model in memory; external data lies beside `path`.
  static Result<Model> of(onnx::ModelProto proto, llvm::StringRef path);

  const onnx::ModelProto& proto() const { return *proto_; }
  llvm::StringRef path() const { return path_; }
  int64_t opset() const { return opset_; }  // opset of the standard operators
  ExternalData& data() const { return *data_; }

 private:
  Model() = default;

  std::string path_;
  std::unique_ptr<onnx::ModelProto> proto_;
  std::unique_ptr<ExternalData> data_;
  int64_t opset_ = 0;
};

// Tells whether a domain is that of the standard operators, which has two spellings.
inline bool is_standard_domain(llvm::StringRef domain) { return domain.empty() || domain == "ai.onnx"; }

struct Weight {
  enum class Place : uint8_t { Inside, External, Absent };  // Absent: the external file does not exist
  std::string name;
  Type type;  // of what is stored
  Place place = Place::Inside;
  std::optional<FourBits> four_bits = std::nullopt;  // what the bytes are
};

// The initializers of a model by name. The model must outlive it.
class WeightSource {
 public:
  static Result<WeightSource> open(const Model& model);

  llvm::ArrayRef<Weight> weights() const { return weights_; }  // in the file's order
  const Weight* find(llvm::StringRef name) const;
  Result<Tensor> load(llvm::StringRef name) const;
  // Copies as many elements as `into` has, from `first` on; of external data, and of raw bytes, no others are read.
  Status load_range(llvm::StringRef name, int64_t first, const TensorView& into) const;

 private:
  explicit WeightSource(const Model& model) : model_(&model) {}

  const Model* model_;
  std::vector<Weight> weights_;
  llvm::StringMap<int> index_;
};

}  // namespace plimsoll
