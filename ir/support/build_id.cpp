#include "ir/support/build_id.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/xxhash.h"

#include <elf.h>
#include <link.h>
#include <cstring>

// The loader keeps the notes of each program and library in memory, so no file is read.

namespace plimsoll {
namespace {

using Note = ElfW(Nhdr);
using Segment = ElfW(Phdr);

uint64_t id_in_notes(const char* notes, size_t bytes) {
  constexpr size_t alignment = 4;
  const auto padded = [](size_t size) { return (size + alignment - 1) / alignment * alignment; };
  for (size_t at = 0; at + sizeof(Note) <= bytes;) {
    Note note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note, content = name + padded(note.n_namesz);
    at = content + padded(note.n_descsz);
    if (at > bytes) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof ELF_NOTE_GNU &&
        std::memcmp(notes + name, ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0)
      return llvm::xxHash64(llvm::StringRef(notes + content, note.n_descsz));
  }
  return 0;
}

// Of the program or library that holds `address`.
struct Search {
  uintptr_t address = 0;
  uint64_t id = 0;
};

int look_into(dl_phdr_info* info, size_t, void* search) {
  auto& [address, id] = *static_cast<Search*>(search);
  const llvm::ArrayRef<Segment> segments(info->dlpi_phdr, info->dlpi_phnum);
  bool holds_address = false;
  for (const Segment& each : segments)
    holds_address |= each.p_type == PT_LOAD && address - (info->dlpi_addr + each.p_vaddr) < each.p_memsz;
  if (!holds_address) return 0;
  for (const Segment& each : segments)
    if (each.p_type == PT_NOTE && id == 0)
      id = id_in_notes(reinterpret_cast<const char*>(info->dlpi_addr + each.p_vaddr), each.p_memsz);
  return 1;
}

}  // namespace

uint64_t build_id() {
  Search search{reinterpret_cast<uintptr_t>(&build_id)};
  dl_iterate_phdr(look_into, &search);
  return search.id;
}

}  // namespace plimsoll
