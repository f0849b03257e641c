#include "kernel_attributes.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "cuda_emulation.h"

namespace emulation {
namespace {

constexpr int64_t kWithoutLeave = 48 << 10;

std::mutex mutex;  // guards all that follows
int device_index = 0;
int64_t most_bytes = 227 << 10;
std::map<const void*, std::string> names;
std::map<const void*, int64_t> static_bytes;
std::map<std::pair<const void*, int>, int64_t> allowed;  // dynamic, by kernel and device
Watch current_watch;

}  // namespace

void use_device(int64_t shared_bytes_of_a_block) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++device_index;
  most_bytes = shared_bytes_of_a_block;
}

void introduce(const void* kernel, const char* name, int64_t static_shared_bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  names[kernel] = name;
  static_bytes[kernel] = static_shared_bytes;
}

std::string name_of(const void* kernel) {
  const std::lock_guard<std::mutex> lock(mutex);
  return names.count(kernel) > 0 ? names[kernel] : "(not introduced)";
}

void require_shared_memory(const void* kernel, size_t dynamic_bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = allowed.find({kernel, device_index});
  const int64_t limit = found != allowed.end()
                            ? found->second
                            : std::max<int64_t>(0, kWithoutLeave - static_bytes[kernel]);
  if (static_cast<int64_t>(dynamic_bytes) > limit) {
    throw Error(std::to_string(dynamic_bytes) + " bytes of dynamic shared memory, besides " +
                std::to_string(static_bytes[kernel]) + " static ones; it is allowed " +
                std::to_string(limit));
  }
}

void watch_shared_memory(Watch watch) {
  const std::lock_guard<std::mutex> lock(mutex);
  current_watch = std::move(watch);
}

void report(const char* what, const void* kernel, int64_t bytes) {
  Watch watch;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    watch = current_watch;
  }
  if (watch) watch(what, name_of(kernel), bytes);
}

}  // namespace emulation

cudaError_t cudaGetDevice(int* device) {
  const std::lock_guard<std::mutex> lock(emulation::mutex);
  *device = emulation::device_index;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  {
    const std::lock_guard<std::mutex> lock(emulation::mutex);
    if (emulation::static_bytes[kernel] + value > emulation::most_bytes) {
      return cudaErrorInvalidValue;
    }
    emulation::allowed[{kernel, emulation::device_index}] = value;
  }
  emulation::report("set", kernel, value);
  return cudaSuccess;
}
