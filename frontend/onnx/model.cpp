#include "frontend/onnx/model.h"

#include "ir/support/read_file.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace plimsoll {
namespace {

Status parse(llvm::StringRef bytes, llvm::StringRef path, onnx::ModelProto& proto) {
  if (bytes.size() > INT32_MAX)
    return model_error(path + ": " + llvm::Twine(bytes.size()) +
                       " bytes, a protobuf file holds at most 2 GiB; store its weights as external data");
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetTotalBytesLimit(INT32_MAX);
  if (!proto.ParseFromCodedStream(&coded) || !coded.ConsumedEntireMessage())
    return model_error(path + ": not an ONNX model, or damaged: reading stopped at byte " +
                       llvm::Twine(coded.CurrentPosition()) + " of " + llvm::Twine(bytes.size()));
  return Status::success();
}

Result<int64_t> standard_opset(const onnx::ModelProto& proto, llvm::StringRef path) {
  if (proto.ir_version() < 1 || !proto.has_graph())
    return model_error(path + ": not an ONNX model: it has no " + (proto.has_graph() ? "ir_version" : "graph"));
  int64_t opset = 0;
  bool only_other_domains = proto.opset_import_size() > 0;
  for (const auto& entry : proto.opset_import())
    if (is_standard_domain(entry.domain())) opset = entry.version(), only_other_domains = false;
  if (only_other_domains) return newest_opset;
  if (opset < 1) return model_error(path + ": does not say which opset it uses");
  if (opset > newest_opset)
    return model_error(path + ": opset " + llvm::Twine(opset) + " is newer than " + llvm::Twine(newest_opset) +
                       ", the newest known here; export with opset_version=" + llvm::Twine(newest_opset));
  return opset;
}

}  // namespace

Result<Model> Model::read(llvm::StringRef path) {
  Result<std::unique_ptr<llvm::MemoryBuffer>> file = read_file(path);
  if (!file) return file.takeError();
  onnx::ModelProto proto;
  if (Status s = parse((*file)->getBuffer(), path, proto)) return s;
  return of(std::move(proto), path);
}

Result<Model> Model::of(onnx::ModelProto proto, llvm::StringRef path) {
  Result<int64_t> opset = standard_opset(proto, path);
  if (!opset) return opset.takeError();
  Model model;
  model.path_ = path.str();
  model.proto_ = std::make_unique<onnx::ModelProto>(std::move(proto));
  model.data_ = std::make_unique<ExternalData>(path);
  model.opset_ = *opset;
  return model;
}

static Result<Weight::Place> place_of(const onnx::TensorProto& tensor, const Type& type, const ExternalData& data) {
  if (!is_external(tensor)) {
    if (Status s = check_stored_inside(tensor, type)) return s;
    return Weight::Place::Inside;
  }
  Result<bool> exists = data.exists(tensor);
  if (!exists) return exists.takeError();
  return *exists ? Weight::Place::External : Weight::Place::Absent;
}

Result<WeightSource> WeightSource::open(const Model& model) {
  WeightSource source(model);
  const onnx::GraphProto& graph = model.proto().graph();
  if (graph.sparse_initializer_size() > 0)
    return model_error(graph.sparse_initializer(0).values().name() + ": sparse initializers are not supported");
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    Result<Type> type = stored_type_from_onnx(tensor);
    if (!type) return type.takeError();
    bool fresh = source.index_.try_emplace(tensor.name(), static_cast<int>(source.weights_.size())).second;
    if (!fresh) return model_error(tensor.name() + ": two initializers have this name");
    Result<Weight::Place> place = place_of(tensor, *type, model.data());
    if (!place) return place.takeError();
    source.weights_.push_back({tensor.name(), *type, *place, four_bits_of(tensor)});
  }
  return source;
}

const Weight* WeightSource::find(llvm::StringRef name) const {
  auto at = index_.find(name);
  return at == index_.end() ? nullptr : &weights_[at->second];
}

Result<Tensor> WeightSource::load(llvm::StringRef name) const {
  auto at = index_.find(name);
  if (at == index_.end()) return model_error(model_->path() + " has no initializer named " + name);
  return stored_from_onnx(model_->proto().graph().initializer(at->second), model_->data());
}

Status WeightSource::load_range(llvm::StringRef name, int64_t first, const TensorView& into) const {
  auto at = index_.find(name);
  if (at == index_.end()) return model_error(model_->path() + " has no initializer named " + name);
  const onnx::TensorProto& stored = model_->proto().graph().initializer(at->second);
  return copy_range_from_onnx(stored, model_->data(), first, into);
}

}  // namespace plimsoll
