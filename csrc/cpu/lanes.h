// Sixteen floats at a time. Included once by each arithmetic_*.cpp, which says how wide the
// machine's own vectors are (RDK_PART_LANES), so that one source serves every instruction set.
//
// Only operations that IEEE 754 defines to the last bit are used, one rounding each, and lanes
// never mix but in `add_lanes`: every instruction set gives the same bits (docs/design.md, "To the
// bit"). The exception is `about_fma`.
//
// Everything is in an unnamed namespace and uses nothing of the standard library but types. An
// inline function with a name that others share, compiled here for AVX-512, might be the copy that
// the linker keeps for all of the program, and stop it on a machine without.
#pragma once

#include <cstdint>

#include "arithmetic.h"

#if RDK_PART_LANES >= 8
#include <immintrin.h>
#endif

namespace rdk::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kPartLanes = RDK_PART_LANES;
constexpr int kParts = kLanes / kPartLanes;
constexpr float kInfinite = __builtin_inff();

// In parts of the machine's own width: GCC takes wider vectors to single elements for a comparison.
typedef float FloatPart __attribute__((vector_size(4 * kPartLanes)));
typedef int32_t IntPart __attribute__((vector_size(4 * kPartLanes)));
typedef uint16_t ShortPart __attribute__((vector_size(2 * kPartLanes)));

struct Floats {
  FloatPart part[kParts];
};

// All bits of a lane are set, or none.
struct Mask {
  IntPart part[kParts];
};

#define RDK_EACH_PART for (int i = 0; i < kParts; ++i)

#define RDK_LANEWISE(result, op)                      \
  inline result operator op(Floats a, Floats b) {     \
    result c;                                         \
    RDK_EACH_PART c.part[i] = a.part[i] op b.part[i]; \
    return c;                                         \
  }
RDK_LANEWISE(Floats, +)
RDK_LANEWISE(Floats, -)
RDK_LANEWISE(Floats, *)
RDK_LANEWISE(Floats, /)
RDK_LANEWISE(Mask, <)
RDK_LANEWISE(Mask, ==)
#undef RDK_LANEWISE

inline Floats all(float value) {
  Floats result;
  RDK_EACH_PART result.part[i] = value - FloatPart{};
  return result;
}

inline Mask operator&(Mask a, Mask b) {
  RDK_EACH_PART a.part[i] &= b.part[i];
  return a;
}

inline Mask operator~(Mask a) {
  RDK_EACH_PART a.part[i] = ~a.part[i];
  return a;
}

// Lane l has bit l.
inline Mask lanes_of_bits(uint32_t bits) {
  int32_t lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = 1 << i;
  Mask result;
  RDK_EACH_PART {
    IntPart own;
    __builtin_memcpy(&own, lane + i * kPartLanes, sizeof own);
    result.part[i] = (own & (static_cast<int32_t>(bits) - IntPart{})) != 0;
  }
  return result;
}

// Bit l is that of lane l.
inline uint32_t bits_of_lanes(Mask mask) {
#if RDK_PART_LANES == 16
  return _mm512_movepi32_mask((__m512i)mask.part[0]);
#elif RDK_PART_LANES == 8
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask.part[0])) |
         static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask.part[1])) << 8;
#else
  int32_t lane[kLanes];
  RDK_EACH_PART __builtin_memcpy(lane + i * kPartLanes, &mask.part[i], sizeof mask.part[i]);
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(lane[i] & 1) << i;
  return bits;
#endif
}

inline Floats select(Mask mask, Floats yes, Floats no) {
  RDK_EACH_PART yes.part[i] = mask.part[i] ? yes.part[i] : no.part[i];
  return yes;
}

// Where b is NaN, b.
// The machine's own instructions are these comparisons to the bit, but GCC does not find them.
inline FloatPart larger(FloatPart a, FloatPart b) {
#if RDK_PART_LANES == 16
  return (FloatPart)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
#elif RDK_PART_LANES == 8
  return (FloatPart)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline FloatPart smaller(FloatPart a, FloatPart b) {
#if RDK_PART_LANES == 16
  return (FloatPart)_mm512_maskz_min_ps(0xFFFF, (__m512)a, (__m512)b);
#elif RDK_PART_LANES == 8
  return (FloatPart)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

inline Floats larger(Floats a, Floats b) {
  RDK_EACH_PART a.part[i] = larger(a.part[i], b.part[i]);
  return a;
}

inline Floats smaller(Floats a, Floats b) {
  RDK_EACH_PART a.part[i] = smaller(a.part[i], b.part[i]);
  return a;
}

// a b + c, rounded once or twice: not the same bits everywhere, for bounds only.
inline Floats about_fma(Floats a, Floats b, Floats c) {
#if RDK_PART_LANES == 16
  a.part[0] = (FloatPart)_mm512_maskz_fmadd_ps(0xFFFF, (__m512)a.part[0], (__m512)b.part[0],
                                               (__m512)c.part[0]);
  return a;
#else
  return a * b + c;
#endif
}

// 2^n from the lowest nine bits of a float: n + 127, as `exponential` leaves it there.
inline Floats power_of_two(Floats biased) {
  RDK_EACH_PART biased.part[i] = (FloatPart)((IntPart)biased.part[i] << 23);
  return biased;
}

// Part by part: GCC copies more than a machine's vector at once through 16-byte registers.
inline void store(float* out, Floats a) {
  RDK_EACH_PART __builtin_memcpy(out + i * kPartLanes, &a.part[i], sizeof a.part[i]);
}

// Elements of a dtype: how they are loaded, and -inf for lanes that are not there.
struct Float32 {
  using Element = float;
  static constexpr Element kMinusInfinity = -kInfinite;
  static Floats load(const Element* in) {
    Floats result;
    RDK_EACH_PART __builtin_memcpy(&result.part[i], in + i * kPartLanes, sizeof result.part[i]);
    return result;
  }
};

// GCC widens in halves what the wider machines do at once.
inline IntPart load_words(const uint16_t* in) {
#if RDK_PART_LANES == 16
  return (IntPart)_mm512_maskz_cvtepu16_epi32(
      0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
#elif RDK_PART_LANES == 8
  return (IntPart)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
#else
  ShortPart words;
  __builtin_memcpy(&words, in, sizeof words);
  return __builtin_convertvector(words, IntPart);
#endif
}

struct BFloat16Bits {
  using Element = uint16_t;
  static constexpr Element kMinusInfinity = 0xFF80;
  static Floats load(const Element* in) {
    Floats result;
    RDK_EACH_PART result.part[i] = (FloatPart)(load_words(in + i * kPartLanes) << 16);
    return result;
  }
};

struct Float16Bits {
  using Element = uint16_t;
  static constexpr Element kMinusInfinity = 0xFC00;
  static FloatPart widen(const Element* in) {
#if RDK_PART_LANES == 16
    return (FloatPart)_mm512_maskz_cvtph_ps(
        0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
#elif RDK_PART_LANES == 8
    return (FloatPart)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
#else
    // Exponents are rebiased from 15 to 127; subnormals are normalised by a subtraction.
    const IntPart bits = load_words(in);
    const IntPart magnitude = (bits & 0x7FFF) << 13;
    const IntPart exponent = magnitude & 0x0F800000;
    const IntPart normal = magnitude + (112 << 23);
    const IntPart infinite = normal + (112 << 23);
    const FloatPart smallest = (FloatPart)(IntPart{} + (113 << 23));
    const IntPart subnormal = (IntPart)((FloatPart)(normal + (1 << 23)) - smallest);
    const IntPart absolute =
        exponent == 0x0F800000 ? infinite : (exponent == 0 ? subnormal : normal);
    return (FloatPart)(absolute | ((bits & 0x8000) << 16));
#endif
  }
  static Floats load(const Element* in) {
    Floats result;
    RDK_EACH_PART result.part[i] = widen(in + i * kPartLanes);
    return result;
  }
};

// Calls f with the elements of a dtype.
template <typename F>
auto with_elements(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::kFloat16:
      return f(Float16Bits{});
    case Dtype::kBFloat16:
      return f(BFloat16Bits{});
    default:
      return f(Float32{});
  }
}

// Fewer than kLanes elements; the other lanes get `filler`.
template <typename Type>
Floats load_some(const typename Type::Element* in, int64_t count, typename Type::Element filler) {
  typename Type::Element padded[kLanes];
  for (int i = 0; i < kLanes; ++i) padded[i] = i < count ? in[i] : filler;
  return Type::load(padded);
}

// Lane l gets lane l + 8, then + 4, + 2, + 1.
inline float add_lanes(Floats a) {
  float lane[kLanes];
  store(lane, a);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

inline float largest_lane(Floats a) {
  float lane[kLanes];
  store(lane, a);
  for (int i = 1; i < kLanes; ++i) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
  return lane[0];
}

// As fast as a branch that is predicted.
constexpr bool kPutsTogetherAtOnce = RDK_PART_LANES == 16;

// Writes the lanes of the mask one after the other, and anything behind them, 16 in all. Returns
// how many there are.
inline int put_together(Floats a, Mask mask, float* out) {
#if RDK_PART_LANES == 16
  const __mmask16 lanes = _mm512_movepi32_mask((__m512i)mask.part[0]);
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps(lanes, (__m512)a.part[0]));
  return __builtin_popcount(lanes);
#else
  float lane[kLanes];
  int32_t kept[kLanes];
  store(lane, a);
  RDK_EACH_PART __builtin_memcpy(kept + i * kPartLanes, &mask.part[i], sizeof mask.part[i]);
  int count = 0;
  for (int i = 0; i < kLanes; ++i) {
    out[count] = lane[i];
    count -= kept[i];
  }
  return count;
#endif
}

// Integers, in the same lanes.
struct Ints {
  IntPart part[kParts];
};

inline Ints truncated(Floats a) {
  Ints result;
  RDK_EACH_PART result.part[i] = __builtin_convertvector(a.part[i], IntPart);
  return result;
}

inline Floats as_floats(Ints a) {
  Floats result;
  RDK_EACH_PART result.part[i] = __builtin_convertvector(a.part[i], FloatPart);
  return result;
}

inline Ints operator+(Ints a, Ints b) {
  RDK_EACH_PART a.part[i] += b.part[i];
  return a;
}

inline Ints ones_of(Mask mask) {
  Ints result;
  RDK_EACH_PART result.part[i] = mask.part[i] & 1;
  return result;
}

inline int64_t add_lanes(Ints a) {
  int64_t sum = 0;
  RDK_EACH_PART {
    int32_t lane[kPartLanes];
    __builtin_memcpy(lane, &a.part[i], sizeof lane);
    for (int32_t value : lane) sum += value;
  }
  return sum;
}

// Sums of floor(2^40 w), of 0 <= w <= 1, for 64 of each lane.
#if RDK_PART_LANES == 16
struct Masses {
  __m512i sums[2] = {};

  void add(Floats weights) {
    const __m512 scaled = _mm512_mul_ps((__m512)weights.part[0], _mm512_set1_ps(0x1p40f));
    sums[0] = _mm512_add_epi64(
        sums[0], _mm512_maskz_cvttps_epi64(0xFF, _mm512_maskz_extractf32x8_ps(0xFF, scaled, 0)));
    sums[1] = _mm512_add_epi64(
        sums[1], _mm512_maskz_cvttps_epi64(0xFF, _mm512_maskz_extractf32x8_ps(0xFF, scaled, 1)));
  }
  int64_t sum() const {
    int64_t lane[kLanes];
    __builtin_memcpy(lane, sums, sizeof lane);
    int64_t total = 0;
    for (int64_t value : lane) total += value;
    return total;
  }
};
#else
// floor(2^40 w) = 2^20 high + low. Both products are exact: they only change an exponent; and so is
// the difference. 64 of either are below 2^31.
struct Masses {
  Ints high = {};
  Ints low = {};

  void add(Floats weights) {
    const Floats scaled = weights * all(0x1p20f);
    const Ints whole = truncated(scaled);
    high = high + whole;
    low = low + truncated((scaled - as_floats(whole)) * all(0x1p20f));
  }
  int64_t sum() const { return (add_lanes(high) << 20) + add_lanes(low); }
};
#endif

inline float smallest_lane(Floats a) {
  float lane[kLanes];
  store(lane, a);
  for (int i = 1; i < kLanes; ++i) lane[0] = lane[i] < lane[0] ? lane[i] : lane[0];
  return lane[0];
}

inline bool no_bit(IntPart part) {
  uint64_t words[sizeof part / 8];
  __builtin_memcpy(words, &part, sizeof words);
  uint64_t bits = 0;
  for (uint64_t word : words) bits |= word;
  return bits == 0;
}

// GCC takes no_bit through memory.
inline bool no_lane_of(IntPart part) {
#if RDK_PART_LANES == 16
  return _mm512_movepi32_mask((__m512i)part) == 0;
#elif RDK_PART_LANES == 8
  return _mm256_movemask_ps((__m256)part) == 0;
#else
  return no_bit(part);
#endif
}

inline bool every_lane(Mask mask) {
  IntPart missing = {};
  RDK_EACH_PART missing |= ~mask.part[i];
  return no_lane_of(missing);
}

inline bool no_lane(Mask mask) {
  IntPart any = {};
  RDK_EACH_PART any |= mask.part[i];
  return no_lane_of(any);
}

// in[1] - in[0] to in[16] - in[15], of ascending numbers.
struct Steps {
  bool all_one;
  bool at_most_one;
};

inline Steps steps_between(const int32_t* in) {
  IntPart not_one = {};
  IntPart more = {};
  RDK_EACH_PART {
    IntPart before;
    IntPart after;
    __builtin_memcpy(&before, in + i * kPartLanes, sizeof before);
    __builtin_memcpy(&after, in + i * kPartLanes + 1, sizeof after);
    not_one |= (after - before) ^ 1;
    more |= (after - before) & ~1;
  }
  return {no_bit(not_one), no_bit(more)};
}

// exp(x) for x <= 0 (and up to 88): within 1 unit in the last place; 0 below -87.68, 0 at -inf, NaN
// at NaN. x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite), exp(r) = 1 + r + r^2 P(r), P of
// degree 4 with an error of 2^-28 relative to exp(r) (minimax by Lawson's iteration). A product by
// 2^-127, which is stored as 0, is how small results become 0. Always inlined: otherwise GCC 12
// calls it with AVX2, and passes its lanes through memory.
__attribute__((always_inline)) inline Floats exponential(Floats x) {
  x = larger(all(-88.0f), smaller(all(89.0f), x));
  // Adding 1.5 * 2^23 rounds to an integer, and leaves it in the lowest bits.
  const Floats shift = all(12582912.0f + 127.0f);
  const Floats biased = x * all(1.44269504088896341f) + shift;
  const Floats n = biased - shift;
  const Floats r = x - n * all(0.693359375f) - n * all(-2.12194440054690583e-4f);
  Floats p = all(0x1.6a2318p-10f);
  p = p * r + all(0x1.123a8ep-7f);
  p = p * r + all(0x1.5558f6p-5f);
  p = p * r + all(0x1.555490p-3f);
  p = p * r + all(0x1.fffffcp-2f);
  return (p * (r * r) + r + all(1.0f)) * power_of_two(biased);
}

// exp(x) for x <= 0, in half as many operations: from x = -28 on within kCoarseError, less what
// sums add to that. 2^f is of degree 4 with an error of 2^-18.5 (minimax by Lawson's
// iteration).
inline Floats coarse_exponential(Floats x) {
  const Floats shift = all(12582912.0f + 127.0f);
  const Floats log2_e = all(1.44269504088896341f);
  x = larger(all(-88.0f), x);
  const Floats biased = about_fma(x, log2_e, shift);
  const Floats f = about_fma(x, log2_e, shift - biased);
  Floats p = all(0x1.3997d6p-7f);
  p = about_fma(p, f, all(0x1.ca1440p-5f));
  p = about_fma(p, f, all(0x1.ec06dap-3f));
  p = about_fma(p, f, all(0x1.62e0dcp-1f));
  p = about_fma(p, f, all(0x1.ffffe8p-1f));
  return p * power_of_two(biased);
}

#undef RDK_EACH_PART

}  // namespace
}  // namespace rdk::cpu
