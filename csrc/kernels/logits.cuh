// Logits as device code reads them: single elements, or a chunk of 1024 columns in a warp's
// registers by 128-bit loads. Which lane holds which column depends on neither dtype nor address:
// the sums of a row must not depend on where it lies.
#pragma once

#include "../params.h"
#include "device.cuh"

namespace rdk {

constexpr int kPerLane = kChunk / kWarp;
// Neighbouring columns of a lane: 16 bytes of a 16-bit type, 32 of float32.
constexpr int kVector = 8;

__device__ __forceinline__ int column_of(int lane, int v) {
  return (v / kVector) * kWarp * kVector + lane * kVector + v % kVector;
}

struct Float16Bits {
  uint16_t bits;
};
struct BFloat16Bits {
  uint16_t bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(BFloat16Bits value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ __forceinline__ float to_float(Float16Bits value) { return half_to_float(value.bits); }

// The elements of four bytes of memory.
__device__ __forceinline__ void unpack(unsigned word, float, float* out) {
  out[0] = __uint_as_float(word);
}
__device__ __forceinline__ void unpack(unsigned word, BFloat16Bits, float* out) {
  out[0] = __uint_as_float(word << 16);
  out[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ void unpack(unsigned word, Float16Bits, float* out) {
  out[0] = half_to_float(static_cast<uint16_t>(word));
  out[1] = half_to_float(static_cast<uint16_t>(word >> 16));
}

// A row of logits of type T.
template <typename T>
struct Logits {
  static constexpr int kPerLoad = 16 / sizeof(T);
  const T* row;

  __device__ __forceinline__ Logits(Dtype, const void* data, int64_t offset)
      : row(static_cast<const T*>(data) + offset) {}

  __device__ __forceinline__ float operator[](int i) const { return to_float(row[i]); }

  // Whether a vector may begin at any column that is a multiple of kVector.
  __device__ __forceinline__ bool aligned() const {
    return reinterpret_cast<uint64_t>(row) % 16 == 0;
  }

  // The columns [i, i + kVector) of an aligned row.
  __device__ __forceinline__ void load_vector(int i, float* out) const {
#pragma unroll
    for (int part = 0; part < kVector; part += kPerLoad) {
      const uint4 bits = __ldg(reinterpret_cast<const uint4*>(row + i + part));
      const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        unpack(words[word], T{}, out + part + word * kPerLoad / 4);
      }
    }
  }
};

// Stands for T where target and drafter differ in dtype: one kernel, element by element, for all of
// the mixed cases.
struct AnyDtype {};

template <>
struct Logits<AnyDtype> {
  Dtype dtype;
  const void* data;
  int64_t offset;

  __device__ __forceinline__ Logits(Dtype type, const void* base, int64_t row_offset)
      : dtype(type), data(base), offset(row_offset) {}

  __device__ __forceinline__ float operator[](int i) const {
    switch (dtype) {
      case Dtype::kFloat16:
        return to_float(static_cast<const Float16Bits*>(data)[offset + i]);
      case Dtype::kBFloat16:
        return to_float(static_cast<const BFloat16Bits*>(data)[offset + i]);
      default:
        return static_cast<const float*>(data)[offset + i];
    }
  }
  __device__ __forceinline__ bool aligned() const { return false; }
  __device__ __forceinline__ void load_vector(int, float*) const {}
};

// A chunk of a row, -inf behind its end. All loads of a full chunk are under way before the first
// is used.
template <typename T>
__device__ __forceinline__ void load_chunk(const Logits<T>& logits, int begin, int size,
                                           float (&out)[kPerLane]) {
  if (logits.aligned() && begin + kChunk <= size) {
#pragma unroll
    for (int v = 0; v < kPerLane; v += kVector) {
      logits.load_vector(begin + column_of(lane_index(), v), out + v);
    }
  } else {
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) {
      const int column = begin + column_of(lane_index(), v);
      out[v] = column < size ? logits[column] : -infinity();
    }
  }
}

}  // namespace rdk
