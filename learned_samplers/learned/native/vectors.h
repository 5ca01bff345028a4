// Vectors of single precision as wide as the machine has them, and the few functions of them that the update needs.
//
// The compiler's vector extensions (GCC and Clang) are the only means: the same source becomes AVX-512, AVX2, SSE or NEON
// by the flags that it is compiled with. The polynomials were fitted to the functions for the least greatest error.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UNROLL(times) PRAGMA(clang loop unroll_count(times))
#else
#define UNROLL(times) PRAGMA(GCC unroll times)
#endif

// LANES coordinates in a vector, UNITS of a layer at a time for VECTORS vectors of coordinates: UNITS·VECTORS accumulators and
// VECTORS inputs fill the registers (32 of them, 16 before AVX-512 on x86).
#if defined(__AVX512F__)
constexpr int LANES = 16, UNITS = 8, VECTORS = 3;
#elif defined(__AVX2__)
constexpr int LANES = 8, UNITS = 4, VECTORS = 3;
#elif defined(__aarch64__)
constexpr int LANES = 4, UNITS = 8, VECTORS = 3;
#else
constexpr int LANES = 4, UNITS = 4, VECTORS = 3;
#endif

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));

INLINE Vector load(const float *from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float *to, Vector x) { std::memcpy(to, &x, sizeof x); }

// Taking away zero, unlike adding it, changes no number at all: the compiler leaves the broadcast alone.
INLINE Vector broadcast(float value) { return value - Vector{}; }

// x·y + z, rounded once where the processor can. Nothing else is fused (-ffp-contract=off): every compiler gives the same
// numbers, and those of torch's own vectors where the update has its operations.
INLINE Vector fused(Vector x, Vector y, Vector z) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__FMA__) && defined(__AVX2__)
    return (Vector)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#elif defined(__aarch64__)
    return (Vector)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#else
    return x * y + z;
#endif
}

INLINE Vector fused(Vector x, float y, Vector z) { return fused(x, broadcast(y), z); }
INLINE Vector fused(Vector x, Vector y, float z) { return fused(x, y, broadcast(z)); }
INLINE Vector fused(Vector x, float y, float z) { return fused(x, broadcast(y), broadcast(z)); }

// A NaN stays one, as in torch.
INLINE Vector relu(Vector x) { return x < 0.0f ? Vector{} : x; }

INLINE Vector clamp(Vector x, float low, float high) {
    x = x < low ? broadcast(low) : x;
    return x > high ? broadcast(high) : x;
}

INLINE float sum(Vector x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

// 1/√x for positive normal x, to 2 units in the last place or so.
INLINE Vector reciprocal_root(Vector x) {
#if defined(__AVX512F__)
    Vector y = (Vector)_mm512_maskz_rsqrt14_ps(0xffff, (__m512)x);
    constexpr int newton_steps = 1;
#elif defined(__AVX2__)
    Vector y = (Vector)_mm256_rsqrt_ps((__m256)x);
    constexpr int newton_steps = 2;
#else
    Vector y = (Vector)(0x5f3759df - ((Integers)x >> 1));
    constexpr int newton_steps = 3;
#endif
    for (int i = 0; i < newton_steps; i++) y = y * fused(x * -0.5f, y * y, 1.5f);
    return y;
}

// log x for positive normal x; absolute error 6·10⁻⁸ in the fraction, besides rounding.
INLINE Vector logarithm(Vector x) {
    const Integers bits = (Integers)x;
    const Integers exponent = (bits - 0x3f3504f3) >> 23;  // of x over √½: the fraction lies in [√½, √2)
    const Vector f = (Vector)(bits - (exponent << 23)) - 1.0f;
    Vector p = fused(f, -0.10224203765392303f, 0.16141177713871002f);
    for (float coefficient : {-0.17166906595230103f, 0.19910238683223724f, -0.2498057335615158f, 0.3333469033241272f, -0.5f})
        p = fused(p, f, coefficient);
    return fused(__builtin_convertvector(exponent, Vector), 0.6931471805599453f, fused(p, f * f, f));
}

// eˣ for |x| ≤ 80; relative error 3·10⁻⁹ besides rounding.
INLINE Vector exponential(Vector x) {
    x = clamp(x, -80.0f, 80.0f);
    // Adding and taking away 1.5·2²³ rounds to the nearest whole number.
    const Vector shifted = fused(x, 1.4426950408889634f, 12582912.0f);
    const Vector whole = shifted - 12582912.0f;
    const Vector f = fused(whole, -1.4286068203094172e-6f, fused(whole, -0.693145751953125f, x));
    Vector p = fused(f, 0.0013950478751212358f, 0.008368882350623608f);
    for (float coefficient : {0.04166620597243309f, 0.1666651964187622f, 0.5f}) p = fused(p, f, coefficient);
    p = fused(p, f * f, f) + 1.0f;
    return (Vector)((Integers)p + (((Integers)shifted - 0x4b400000) << 23));
}

// Numbers too small for full precision become zero while this lives: arithmetic with them is a hundred times slower, and the
// running averages of a weight without gradient pass through them on their way to zero.
class FlushToZero {
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();

  public:
    FlushToZero() { _mm_setcsr(before | 0x8040); }
    ~FlushToZero() { _mm_setcsr(before); }
#else
  public:
    FlushToZero() {}
#endif
    FlushToZero(const FlushToZero &) = delete;
};
