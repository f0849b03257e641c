// Logits as device code reads them: single elements, or a chunk of 1024 columns, by 128-bit loads
// into the registers of a warp. Which lane holds which column depends on neither dtype nor address,
// because the sums of a row must not depend on where the row lies.
#pragma once

#include "device.cuh"

namespace rdk {

constexpr int kPerLane = kChunk / kWarp;
// Neighbouring columns of a lane: 16 bytes of a 16-bit type, 32 of float32.
constexpr int kVector = 8;
constexpr int kCopied = 16;  // bytes of one load or copy

RDK_DEVICE int chunks_in(int64_t columns) {
  return (static_cast<int>(columns) + kChunk - 1) / kChunk;
}

RDK_DEVICE int column_of(int lane, int v) {
  return (v / kVector) * kWarp * kVector + lane * kVector + v % kVector;
}

struct Float16Bits {
  uint16_t bits;
};
struct BFloat16Bits {
  uint16_t bits;
};

RDK_DEVICE float to_float(float value) { return value; }
RDK_DEVICE float to_float(BFloat16Bits value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
RDK_DEVICE float to_float(Float16Bits value) { return half_to_float(value.bits); }

RDK_DEVICE void store_rounded(float value, float* out) { *out = value; }

// Round to nearest, ties to even; NaN stays NaN.
RDK_DEVICE void store_rounded(float value, BFloat16Bits* out) {
  const unsigned bits = __float_as_uint(value);
  const bool nan = value != value;
  out->bits = static_cast<uint16_t>(nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

RDK_DEVICE void store_rounded(float value, Float16Bits* out) {
  const unsigned bits = __float_as_uint(value);
  const unsigned sign = (bits >> 16) & 0x8000u;
  const float magnitude = fabsf(value);
  unsigned half;
  if (value != value) {
    half = 0x7e00u;
  } else if (magnitude >= 65520.0f) {
    half = 0x7c00u;
  } else if (magnitude < 6.103515625e-05f) {
    // Subnormal: 2^-24 is the unit, and adding 0.5 in float32 rounds to it.
    half = __float_as_uint(magnitude + 0.5f) - __float_as_uint(0.5f);
  } else {
    const unsigned rebased = __float_as_uint(magnitude) - (112u << 23);
    half = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

// The elements of four bytes of memory.
RDK_DEVICE void unpack(unsigned word, float, float* out) { out[0] = __uint_as_float(word); }
RDK_DEVICE void unpack(unsigned word, BFloat16Bits, float* out) {
  out[0] = __uint_as_float(word << 16);
  out[1] = __uint_as_float(word & 0xffff0000u);
}
RDK_DEVICE void unpack(unsigned word, Float16Bits, float* out) {
  out[0] = half_to_float(static_cast<uint16_t>(word));
  out[1] = half_to_float(static_cast<uint16_t>(word >> 16));
}

// The elements of two words that are larger, place by place: for types of 16 bits two in one
// instruction. A NaN is passed over, as by fmaxf.
RDK_DEVICE unsigned larger(unsigned a, unsigned b, float) {
  return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}
RDK_DEVICE unsigned larger(unsigned a, unsigned b, BFloat16Bits) { return larger_bfloat16s(a, b); }
RDK_DEVICE unsigned larger(unsigned a, unsigned b, Float16Bits) { return larger_halves(a, b); }

// Words of nothing but -inf.
RDK_DEVICE unsigned lowest(float) { return 0xff800000u; }
RDK_DEVICE unsigned lowest(BFloat16Bits) { return 0xff80ff80u; }
RDK_DEVICE unsigned lowest(Float16Bits) { return 0xfc00fc00u; }

// A row of logits of type T.
template <typename T>
struct Logits {
  static constexpr bool kByVectors = true;
  static constexpr int kPerLoad = kCopied / sizeof(T);
  static constexpr int kLoads = kVector / kPerLoad;  // of a vector
  const T* row;

  RDK_DEVICE Logits(Dtype, const void* data, int64_t offset)
      : row(static_cast<const T*>(data) + offset) {}

  RDK_DEVICE void advance(int64_t elements) { row += elements; }

  RDK_DEVICE float operator[](int i) const { return to_float(row[i]); }

  // Bytes between the row's first column and the aligned 16 bytes that it lies in.
  RDK_DEVICE int misalignment() const {
    return static_cast<int>(reinterpret_cast<uint64_t>(row) % kCopied);
  }
  // Whether a vector may begin at any column that is a multiple of kVector.
  RDK_DEVICE bool aligned() const { return misalignment() == 0; }

  // The 16 bytes of an aligned row that begin at column i, and the kPerLoad columns in them.
  RDK_DEVICE const uint4* vector(int i) const { return reinterpret_cast<const uint4*>(row + i); }
  RDK_DEVICE static void unpack_bits(uint4 bits, float* out) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) unpack(words[word], T{}, out + word * kPerLoad / 4);
  }

  // The columns [i, i + kVector) of an aligned row.
  RDK_DEVICE void load_vector(int i, float* out) const {
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

  RDK_DEVICE void add(uint4 bits) {
    word = larger(word, larger(larger(bits.x, bits.y, T{}), larger(bits.z, bits.w, T{}), T{}), T{});
  }
  RDK_DEVICE float value() const {
    float elements[2] = {-infinity(), -infinity()};
    unpack(word, T{}, elements);
    return fmaxf(elements[0], elements[1]);
  }
};

// Takes the place of a drafter's T that is not the target's: one kernel for each target's dtype
// reads any such drafter element by element, never ahead.
struct AnyDtype {};

template <>
struct Logits<AnyDtype> {
  static constexpr bool kByVectors = false;
  Dtype dtype;
  const void* data;
  int64_t offset;

  RDK_DEVICE Logits(Dtype type, const void* base, int64_t row_offset)
      : dtype(type), data(base), offset(row_offset) {}

  RDK_DEVICE void advance(int64_t elements) { offset += elements; }

  RDK_DEVICE float operator[](int i) const {
    switch (dtype) {
      case Dtype::kFloat16:
        return to_float(static_cast<const Float16Bits*>(data)[offset + i]);
      case Dtype::kBFloat16:
        return to_float(static_cast<const BFloat16Bits*>(data)[offset + i]);
      default:
        return static_cast<const float*>(data)[offset + i];
    }
  }
};

template <typename T>
constexpr int kChunksInFlight = kRingBytes / (kChunk * static_cast<int>(sizeof(T)));
template <>
constexpr int kChunksInFlight<AnyDtype> = 1;

// Whether a chunk can be read by 16-byte loads, and so ahead of its use.
template <typename T>
RDK_DEVICE bool is_whole(const Logits<T>& logits, int begin, int size) {
  return logits.aligned() && begin + kChunk <= size;
}

// Where the ring holds the i-th 16 bytes of a chunk. A warp copies 512 bytes in a row, so that each
// sector is asked for once, and a lane reads a vector, which others copied if it is float32 or not
// aligned. For float32 neighbours change places if bit 3 of their number is set: in order, lanes
// that are four apart would read their vectors from the same banks.
template <typename T>
RDK_DEVICE int place_of_part(int i) {
  return Logits<T>::kLoads > 1 ? i ^ (i / 8 % 2) : i;
}
// And those that a lane reads, from its v-th column on.
template <typename T>
RDK_DEVICE int place_of_column(int v) {
  constexpr int kLoads = Logits<T>::kLoads;
  return v / kVector * kWarp * kLoads +
         place_of_part<T>(lane_index() * kLoads + v % kVector / Logits<T>::kPerLoad);
}

template <typename T>
RDK_DEVICE void copy_whole_chunk(const Logits<T>& logits, int begin, uint4* landing) {
#pragma unroll
  for (int part = 0; part < kPerLane / Logits<T>::kPerLoad; ++part) {
    async_copy(&landing[part * kWarp + place_of_part<T>(lane_index())],
               logits.vector(begin) + part * kWarp + lane_index());
  }
}

// Starts the copy of a chunk into the ring, by a warp. Of a row that is not aligned, or ends within
// the chunk, it is the aligned 16 bytes that the chunk lies in, one more than it has: what they
// hold of the row before is shifted out, and behind the row's end nothing is read: the last
// elements are copied one by one, because compute-sanitizer takes a copy of less than 16 bytes for
// one of 16.
template <typename T>
RDK_DEVICE void copy_chunk(const Logits<T>& logits, int begin, int size, uint4* landing) {
  if (is_whole(logits, begin, size)) return copy_whole_chunk(logits, begin, landing);
  const int lane = made_here(lane_index());
  const int before = logits.misalignment();
  const auto* first = reinterpret_cast<const unsigned char*>(logits.row + begin) - before;
  const uint4* from = reinterpret_cast<const uint4*>(first) + lane;
  uint4* to = landing + place_of_part<T>(lane);
  int bytes = before + min(kChunk, size - begin) * static_cast<int>(sizeof(T));
  bytes -= lane * kCopied;
#pragma unroll 1
  for (; bytes >= kCopied; bytes -= kWarp * kCopied, from += kWarp, to += kWarp) {
    async_copy(to, from);
  }
#pragma unroll 1
  for (int i = 0; i * static_cast<int>(sizeof(T)) < bytes; ++i) {
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
  }
}

// Where the 16-byte parts of a whole chunk are read from: the ring, where copies have landed, or
// global memory.
struct InMemory {};
RDK_DEVICE uint4 read_part(const uint4* landed, int place, const uint4*) { return landed[place]; }
RDK_DEVICE uint4 read_part(InMemory, int, const uint4* memory) { return __ldg(memory); }

RDK_DEVICE float largest_of(const float (&values)[kPerLane]) {
  float largest = -infinity();
#pragma unroll
  for (int v = 0; v < kPerLane; ++v) largest = fmaxf(largest, values[v]);
  return largest;
}

template <typename T>
RDK_DEVICE float read_columns(const Logits<T>& logits, int begin, int size,
                              float (&out)[kPerLane]) {
  const int lane = made_here(lane_index());
#pragma unroll
  for (int v = 0; v < kPerLane; ++v) {
    const int column = begin + column_of(lane, v);
    out[v] = column < size ? logits[column] : -infinity();
  }
  return largest_of(out);
}

// 16 bytes that begin this many bytes after the first of 32.
RDK_DEVICE uint4 shifted(uint4 first, uint4 second, int bytes) {
  const unsigned words[8] = {first.x,  first.y,  first.z,  first.w,
                             second.x, second.y, second.z, second.w};
  unsigned pairs[6];
  unsigned singles[5];
#pragma unroll
  for (int i = 0; i < 6; ++i) pairs[i] = (bytes & 8) != 0 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) singles[i] = (bytes & 4) != 0 ? pairs[i + 1] : pairs[i];
  const int bits = bytes % 4 * 8;
  return {
      __funnelshift_r(singles[0], singles[1], bits), __funnelshift_r(singles[1], singles[2], bits),
      __funnelshift_r(singles[2], singles[3], bits), __funnelshift_r(singles[3], singles[4], bits)};
}

// A word of a chunk, of which only so many elements are left.
template <typename T>
RDK_DEVICE unsigned padded(unsigned word, int left) {
  constexpr int kElements = sizeof(unsigned) / sizeof(T);
  if (left >= kElements) return word;
  return left <= 0 ? lowest(T{}) : (word & 0xffffu) | (lowest(T{}) & 0xffff0000u);
}

// Whether a chunk that is not whole can now be read as if it were: in the ring a warp moves it to
// where a whole one lies, and pads it.
template <typename T>
RDK_DEVICE bool made_whole(const Logits<T>&, int, int, InMemory) {
  return false;
}
template <typename T>
RDK_DEVICE bool made_whole(const Logits<T>& logits, int begin, int size, uint4* landed) {
  constexpr int kPerLoad = Logits<T>::kPerLoad;
  const int before = logits.misalignment();
  const int lane = made_here(lane_index());
  const int own = place_of_part<T>(lane);
  const int next = place_of_part<T>(lane + 1);
  int left = size - begin - lane * kPerLoad;
#pragma unroll 1
  for (int i = 0; i < kPerLane / kPerLoad; ++i, landed += kWarp, left -= kWarp * kPerLoad) {
    uint4 part = shifted(landed[own], landed[next], before);
    if (left < kPerLoad) {
      part.x = padded<T>(part.x, left);
      part.y = padded<T>(part.y, left - kPerLoad / 4);
      part.z = padded<T>(part.z, left - kPerLoad / 2);
      part.w = padded<T>(part.w, left - kPerLoad / 4 * 3);
    }
    __syncwarp(kAllLanes);
    landed[own] = part;
  }
  __syncwarp(kAllLanes);
  return true;
}

// A chunk of a row, padded with -inf; returns the largest of this lane's columns. All loads of a
// whole chunk are issued before the first value is used.
template <typename T, typename Source>
RDK_DEVICE float read_whole_chunk(const Logits<T>& logits, int begin, Source source,
                                  float (&out)[kPerLane]) {
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
template <typename T, typename Source>
RDK_DEVICE float read_chunk(const Logits<T>& logits, int begin, int size, Source source,
                            float (&out)[kPerLane]) {
  if constexpr (Logits<T>::kByVectors) {
    if (is_whole(logits, begin, size) || made_whole(logits, begin, size, source)) {
      return read_whole_chunk(logits, begin, source, out);
    }
  }
  return read_columns(logits, begin, size, out);
}

}  // namespace rdk
