#include "ir/op_signature.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

size_t index_of(const Ports& ports, llvm::StringRef name) {
  for (size_t i = 0; i < ports.size(); ++i)
    if (ports[i].name == name) return i;
  assert(false && "the record has no operand or result of this name");
  return 0;
}

llvm::StringRef kind_name(AttrKind kind) {
  constexpr llvm::StringLiteral names[] = {"an integer",        "a number", "a string", "a list of integers",
                                           "a list of numbers", "a dtype",  "a tensor"};
  return names[static_cast<size_t>(kind)];
}

Status check_attrs(const Attrs& attrs, const AttrSpecs& specs) {
  for (const AttrSpec& spec : specs) {
    const Attr* attr = attrs.find(spec.name);
    if (!attr && spec.need == AttrNeed::Required) return model_error("attribute '" + spec.name + "' is missing");
    if (!attr) continue;
    const auto kind = static_cast<AttrKind>(attr->index());
    if (kind != spec.kind && !(spec.kind == AttrKind::Float && kind == AttrKind::Int))
      return model_error("attribute '" + spec.name + "' must be " + kind_name(spec.kind));
  }
  for (const Attrs::Entry& entry : attrs.entries())
    if (llvm::none_of(specs, [&](const AttrSpec& spec) { return spec.name == entry.first; }))
      return model_error("unknown attribute '" + entry.first + "'");
  return Status::success();
}

}  // namespace plimsoll
