#include "kernel_name.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

namespace emulation {
namespace {

std::string demangle(const char* symbol) {
  int status = 0;
  char* name = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  const std::string result = status == 0 ? name : symbol;
  std::free(name);
  return result;
}

}  // namespace

std::string kernel_name(const void* kernel) {
  Dl_info module;
  if (dladdr(kernel, &module) == 0) return "(unknown)";
  const auto offset = static_cast<ElfW(Addr)>(static_cast<const char*>(kernel) -
                                              static_cast<const char*>(module.dli_fbase));
  std::ifstream file(module.dli_fname, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() < sizeof(ElfW(Ehdr))) return "(unknown)";

  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(bytes.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = bytes.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(bytes.data() + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(ElfW(Sym)); ++s) {
      const bool is_function = (symbols[s].st_info & 0xf) == STT_FUNC;
      if (is_function && symbols[s].st_value == offset) return demangle(names + symbols[s].st_name);
    }
  }
  return "(unknown)";
}

}  // namespace emulation
