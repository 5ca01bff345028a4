// The tensors of a step, cut into blocks, and what is summed over them.
#pragma once

#include <vector>

#include "settings.h"
#include "vectors.h"

constexpr int64_t BLOCK = 2048;
// Coordinates whose state stays in the second-level cache from phase to phase, for each thread.
constexpr int64_t GROUP = 32768;

enum Sum { OUTPUT, GRADIENT, PARAMETER, MOMENTUM, AVERAGE };  // then the averages of g, then those of g²
constexpr int MOST_SUMS = AVERAGE + MOST_AVERAGES + MOST_SECONDS;

struct Block {
    int piece;
    int64_t start, stop;
    double sums[MOST_SUMS];  // of squares; of the averages of g² themselves
};

// What the coordinates of a tensor need to know of the whole of it.
struct Whole {
    double means[MOST_SUMS];
    float log_factor[MOST_SECONDS];
    double output_factor = 1;  // of normalised outputs
    std::vector<float> weight, bias;  // first layer, with the tensor's scales and context in it
};

// Where a tile of coordinates lies.
struct Tile {
    const float *gradient;
    float *parameter, *momentum, *noise, *averages;
    uint16_t *narrow;  // in the place of the averages where they are kept in bfloat16, else null
    int64_t stride;
    const float *extra;  // a row of features, or null

    Tile from(int64_t i) const {
        return {gradient + i, parameter + i, momentum + i, noise ? noise + i : nullptr, averages ? averages + i : nullptr,
                narrow ? narrow + i : nullptr, stride, extra ? extra + i : nullptr};
    }
};

// n coordinates in tiles of WIDTH vectors, then of one; the last, which may be incomplete, on copies.
template <int WIDTH, typename Wide, typename Narrow>
INLINE void tiles(const Tile &t, int64_t n, int averages, Wide wide, Narrow narrow) {
    int64_t i = 0;
    for (; i + WIDTH * LANES <= n; i += WIDTH * LANES) wide(t.from(i));
    for (; i + LANES <= n; i += LANES) narrow(t.from(i));
    const size_t rest = (n - i) * sizeof(float);
    if (!rest) return;
    alignas(64) float copies[5 + MOST_AVERAGES + MOST_SECONDS][LANES] = {};
    const Tile from = t.from(i), copy{copies[0], copies[1], copies[2], t.noise ? copies[3] : nullptr, copies[5], nullptr, LANES,
                                    t.extra ? copies[4] : nullptr};
    std::memcpy(copies[0], from.gradient, rest);
    std::memcpy(copy.parameter, from.parameter, rest);
    std::memcpy(copy.momentum, from.momentum, rest);
    if (t.noise) std::memcpy(copy.noise, from.noise, rest);
    if (t.extra) std::memcpy(copies[4], from.extra, rest);
    for (int k = 0; k < averages; k++) {
        if (!from.narrow) std::memcpy(copies[5 + k], from.averages + k * from.stride, rest);
        else for (int64_t j = 0; j < n - i; j++) copies[5 + k][j] = widened(from.narrow[k * from.stride + j]);
    }
    narrow(copy);
    std::memcpy(from.parameter, copy.parameter, rest);
    std::memcpy(from.momentum, copy.momentum, rest);
    if (t.noise) std::memcpy(from.noise, copy.noise, rest);
}

inline float sum_of_squares(const float *x, int64_t n) {
    Vector a{}, b{};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const Vector first = load(x + i), second = load(x + i + LANES);
        a = fused(first, first, a), b = fused(second, second, b);
    }
    float rest = 0;
    for (; i < n; i++) rest += x[i] * x[i];
    return sum(a + b) + rest;
}

// The running average of x, or of x², in place; the sum of its squares, or its sum.
template <bool SQUARE>
float update_average(const float *gradient, float *average, int64_t n, float weight) {
    Vector a{}, b{};
    int64_t i = 0;
    const auto one = [&](int64_t at) __attribute__((always_inline)) {
        const Vector g = load(gradient + at);
        Vector m = load(average + at);
        m = fused((SQUARE ? g * g : g) - m, weight, m);
        store(average + at, m);
        return SQUARE ? m : m * m;
    };
    for (; i + 2 * LANES <= n; i += 2 * LANES) a += one(i), b += one(i + LANES);
    float rest = 0;
    for (; i < n; i++) {
        const float g = gradient[i], m = average[i] + weight * ((SQUARE ? g * g : g) - average[i]);
        average[i] = m;
        rest += SQUARE ? m : m * m;
    }
    return sum(a + b) + rest;
}

// The same for averages in bfloat16, of coordinates from `start` on; `dither` is that of the step and the average.
template <bool SQUARE>
float update_average(const float *gradient, uint16_t *average, int64_t n, float weight, int64_t start, uint32_t dither) {
    Naturals thresholds;
    for (int i = 0; i < LANES; i++) thresholds[i] = static_cast<uint32_t>(start + i) * COORDINATE_DITHER + dither;
    Vector total{};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES, thresholds += LANES * COORDINATE_DITHER) {
        const Vector g = load(gradient + i);
        Vector m = load(average + i);
        m = fused((SQUARE ? g * g : g) - m, weight, m);
        const Naturals bits = ((Naturals)m + (thresholds >> 16)) >> 16;
        const Halves halves = __builtin_convertvector(bits, Halves);
        std::memcpy(average + i, &halves, sizeof halves);
        m = (Vector)(bits << 16);
        total += SQUARE ? m : m * m;
    }
    float rest = 0;
    for (; i < n; i++) {
        const float g = gradient[i], old = widened(average[i]), m = old + weight * ((SQUARE ? g * g : g) - old);
        uint32_t bits;
        std::memcpy(&bits, &m, sizeof bits);
        average[i] = static_cast<uint16_t>((bits + ((static_cast<uint32_t>(start + i) * COORDINATE_DITHER + dither) >> 16)) >> 16);
        const float kept = widened(average[i]);
        rest += SQUARE ? kept : kept * kept;
    }
    return sum(total) + rest;
}
