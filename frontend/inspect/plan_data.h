#pragma once

// A plan as the scripts of a page read it: one JSON object in a script element, with short lists in the place of
// objects. It belongs to the page and is no interface; programs read `inspect --json`.

#include "ir/plan/plan.h"

#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

// CSS colour of each category, dark enough for light and dark backgrounds.
llvm::StringRef category_color(Category category);

// One memory of the plan, in which it has an arena. `id` is the element's; `title` names it to people.
void print_plan_data(llvm::raw_ostream& out, const Plan& plan, MemorySpace space, llvm::StringRef id,
                     llvm::StringRef title);

// Prints JSON into a script element, where a text may not end it.
void print_json_script(llvm::raw_ostream& out, llvm::StringRef id, llvm::StringRef json);

}  // namespace plimsoll
