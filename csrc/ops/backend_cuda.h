// Starts kernels that nvcc has compiled into the module, on the current stream of their device.
#pragma once

#include <cstdint>

#include "../cuda/plan.h"
#include "../cuda/start.h"

namespace rdk::ops {

class CudaStarter {
 public:
  // operator_name: for errors. device is the current one.
  CudaStarter(const char* operator_name, int32_t device);

  Machine machine() const;

  template <typename Launch>
  void start(const Launch& launch, void* workspace) const {
    clear_tickets(launch.shape, workspace);
    check(rdk::start(launch, stream_), launch.shape);
  }

 private:
  bool has_code_of_9_0() const;
  void clear_tickets(const LaunchShape& shape, void* workspace) const;
  void check(cudaError_t status, const LaunchShape& shape) const;

  const char* operator_name_;
  int32_t device_;
  cudaStream_t stream_;
};

}  // namespace rdk::ops
