// Logits as device code reads them: single elements, or a chunk of 1024 columns, by 128-bit loads
// into the registers of a warp. Which lane holds which column depends on neither dtype nor address,
// because the sums of a row must not depend on where the row lies.
#pragma once

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

// The elements of two words that are larger, place by place: for types of 16 bits two in one
// instruction. A NaN is passed over, as by fmaxf.
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, float) {
  return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, BFloat16Bits) {
  return larger_bfloat16s(a, b);
}
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, Float16Bits) {
  return larger_halves(a, b);
}

// Words of nothing but -inf.
__device__ __forceinline__ unsigned lowest(float) { return 0xff800000u; }
__device__ __forceinline__ unsigned lowest(BFloat16Bits) { return 0xff80ff80u; }
__device__ __forceinline__ unsigned lowest(Float16Bits) { return 0xfc00fc00u; }

// A row of logits of type T.
template <typename T>
struct Logits {
  static constexpr int kPerLoad = 16 / sizeof(T);
  static constexpr int kLoads = kVector / kPerLoad;  // of a vector
  const T* row;

  __device__ __forceinline__ Logits(Dtype, const void* data, int64_t offset)
      : row(static_cast<const T*>(data) + offset) {}

  __device__ __forceinline__ void advance(int64_t elements) { row += elements; }

  __device__ __forceinline__ float operator[](int i) const { return to_float(row[i]); }

  // Whether a vector may begin at any column that is a multiple of kVector.
  __device__ __forceinline__ bool aligned() const {
    return reinterpret_cast<uint64_t>(row) % 16 == 0;
  }

  // The 16 bytes of an aligned row that begin at column i, and the kPerLoad columns in them.
  __device__ __forceinline__ const uint4* vector(int i) const {
    return reinterpret_cast<const uint4*>(row + i);
  }
  __device__ __forceinline__ static void unpack_bits(uint4 bits, float* out) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) unpack(words[word], T{}, out + word * kPerLoad / 4);
  }

  // The columns [i, i + kVector) of an aligned row.
  __device__ __forceinline__ void load_vector(int i, float* out) const {
#pragma unroll
    for (int part = 0; part < kVector; part += kPerLoad) {
      unpack_bits(__ldg(vector(i + part)), out + part);
    }
  }
};

// The largest of the elements that were added, 16 bytes at a time.
template <typename T>
struct LargestElement {
  unsigned word = lowest(T{});

  __device__ __forceinline__ void add(uint4 bits) {
    word = larger(word, larger(larger(bits.x, bits.y, T{}), larger(bits.z, bits.w, T{}), T{}), T{});
  }
  __device__ __forceinline__ float value() const {
    float elements[2] = {-infinity(), -infinity()};
    unpack(word, T{}, elements);
    return fmaxf(elements[0], elements[1]);
  }
};

// Takes the place of a drafter's T that is not the target's: one kernel for each target's dtype
// reads any such drafter element by element.
struct AnyDtype {};

template <>
struct Logits<AnyDtype> {
  static constexpr int kPerLoad = kPerLane;
  static constexpr int kLoads = 1;
  Dtype dtype;
  const void* data;
  int64_t offset;

  __device__ __forceinline__ Logits(Dtype type, const void* base, int64_t row_offset)
      : dtype(type), data(base), offset(row_offset) {}

  __device__ __forceinline__ void advance(int64_t elements) { offset += elements; }

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

  // Never 128-bit loads.
  __device__ __forceinline__ bool aligned() const { return false; }
  __device__ __forceinline__ const uint4* vector(int) const { return nullptr; }
};

template <typename T>
constexpr int kChunksInFlight = kRingBytes / (kChunk * static_cast<int>(sizeof(T)));
template <>
constexpr int kChunksInFlight<AnyDtype> = 1;

// Whether a chunk can be read by 16-byte loads, and so ahead of its use.
template <typename T>
__device__ __forceinline__ bool is_whole(const Logits<T>& logits, int begin, int size) {
  return logits.aligned() && begin + kChunk <= size;
}

// Whether a lane reads what other lanes copied. A lane's vector of float32 has 32 bytes, and a copy
// 16: if each lane copied its own, every copy of a warp would take half of each of 32 sectors, and
// L2 would send all of them twice. So a warp always copies 512 bytes in a row.
template <typename T>
constexpr bool kReadsOthersCopies = Logits<T>::kLoads > 1;

// Where the ring holds the 16 bytes of a chunk that this lane copies of each 512, and those that it
// reads: from its v-th column on. Neighbours change places if bit 3 of their number is set: in
// order, lanes that are four apart would read their vectors of float32 from the same banks.
template <typename T>
__device__ __forceinline__ int place_of_copy() {
  return kReadsOthersCopies<T> ? lane_index() ^ (lane_index() / 8 % 2) : lane_index();
}
template <typename T>
__device__ __forceinline__ int place_of_column(int v) {
  constexpr int kLoads = Logits<T>::kLoads;
  const int load = v % kVector / Logits<T>::kPerLoad;
  const int swapped = kReadsOthersCopies<T> ? load ^ (lane_index() / 4 % 2) : load;
  return v / kVector * kWarp * kLoads + lane_index() * kLoads + swapped;
}

// Starts the copy of a chunk into the ring, by a warp, if the chunk is whole.
template <typename T>
__device__ __forceinline__ void copy_chunk(const Logits<T>& logits, int begin, int size,
                                           uint4* landing) {
  if (!is_whole(logits, begin, size)) return;
#pragma unroll
  for (int part = 0; part < kPerLane / Logits<T>::kPerLoad; ++part) {
    async_copy(&landing[part * kWarp + place_of_copy<T>()],
               logits.vector(begin) + part * kWarp + lane_index());
  }
}

// Where the 16-byte parts of a whole chunk are read from: the ring, where copies have landed, or
// global memory.
struct InMemory {};
__device__ __forceinline__ uint4 read_part(const uint4* landed, int place, const uint4*) {
  return landed[place];
}
__device__ __forceinline__ uint4 read_part(InMemory, int, const uint4* memory) {
  return __ldg(memory);
}

__device__ __forceinline__ float largest_of(const float (&values)[kPerLane]) {
  float largest = -infinity();
#pragma unroll
  for (int v = 0; v < kPerLane; ++v) largest = fmaxf(largest, values[v]);
  return largest;
}

template <typename T>
__device__ __forceinline__ float read_columns(const Logits<T>& logits, int begin, int size,
                                              float (&out)[kPerLane]) {
#pragma unroll
  for (int v = 0; v < kPerLane; ++v) {
    const int column = begin + column_of(lane_index(), v);
    out[v] = column < size ? logits[column] : -infinity();
  }
  return largest_of(out);
}

// A chunk of a row, padded with -inf; returns the largest of this lane's columns. All loads of a
// whole chunk are issued before the first value is used.
template <typename T, typename Source>
__device__ __forceinline__ float read_chunk(const Logits<T>& logits, int begin, int size,
                                            Source source, float (&out)[kPerLane]) {
  if (is_whole(logits, begin, size)) {
    LargestElement<T> largest;
#pragma unroll
    for (int v = 0; v < kPerLane; v += Logits<T>::kPerLoad) {
      const uint4* memory = logits.vector(begin + column_of(lane_index(), v));
      const uint4 bits = read_part(source, place_of_column<T>(v), memory);
      Logits<T>::unpack_bits(bits, out + v);
      largest.add(bits);
    }
    return largest.value();
  }
  return read_columns(logits, begin, size, out);
}
template <typename Source>
__device__ __forceinline__ float read_chunk(const Logits<AnyDtype>& logits, int begin, int size,
                                            Source, float (&out)[kPerLane]) {
  return read_columns(logits, begin, size, out);
}

}  // namespace rdk
