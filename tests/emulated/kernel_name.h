#pragma once

#include <string>

namespace emulation {

// As in the source, with template arguments; from the symbol table of the file it was loaded from.
std::string kernel_name(const void* kernel);

}  // namespace emulation
