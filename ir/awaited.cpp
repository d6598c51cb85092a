#include "ir/awaited.h"

#include "ir/mesh.h"
#include "ir/op_def.h"

namespace plimsoll {

bool is_awaited(const Node& node) {
  return node.op->engine == Engine::Ranks && node.attrs.get_string("axis") == axis_name(MeshAxis::Stage);
}

}  // namespace plimsoll
