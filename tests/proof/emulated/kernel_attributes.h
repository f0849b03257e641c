// How much shared memory a block of a kernel may have on the emulated device, by the rules of CUDA
// 13.0's cuda.h (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES): static and dynamic together 48
// KiB, or as much as the kernel was allowed, and that at most what the device has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace emulation {

// From now on, kernels run on a device of their own: nothing is allowed there yet.
void use_device(int64_t shared_bytes_of_a_block);

// As it was introduced.
std::string name_of(const void* kernel);

// Throws an Error where a launch asks for more than the kernel is allowed now.
void require_shared_memory(const void* kernel, size_t dynamic_bytes);

// Sees every attribute that has been set ("set"), and every launch before it begins ("launch").
using Watch = std::function<void(const char* what, const std::string& kernel, int64_t bytes)>;
void watch_shared_memory(Watch watch);
void report(const char* what, const void* kernel, int64_t bytes);

}  // namespace emulation
