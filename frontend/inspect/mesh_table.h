#pragma once

#include "frontend/inspect/text_table.h"

namespace plimsoll {

// How the plan's mesh was chosen: one row for each mesh that was compiled, and how many were ruled out before. Prints
// nothing where the mesh was asked for.
void print_mesh_search(TextTable& table, const Plan& plan);

}  // namespace plimsoll
