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
    int64_t stride;

    Tile from(int64_t i) const {
        return {gradient + i, parameter + i, momentum + i, noise ? noise + i : nullptr, averages + i, stride};
    }
};

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
