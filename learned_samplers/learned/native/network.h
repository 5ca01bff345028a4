// Layers of a small network on a tile of coordinates: all activations in registers and the first-level cache.
#pragma once

#include <vector>

#include "vectors.h"

constexpr int MOST_WIDTH = 64, MOST_LAYERS = 5;

// A hidden layer's weights as they are read: UNITS units side by side, input by input; units beyond the last one are zeros.
struct Layer {
    int inputs = 0, units = 0;
    std::vector<float> weight, bias;

    void shape(int inputs_, int units_) {
        inputs = inputs_, units = units_;
        weight.assign(static_cast<size_t>(chunks()) * inputs * UNITS, 0.0f);
        bias.assign(static_cast<size_t>(chunks()) * UNITS, 0.0f);
    }
    void read(const float *weights, const float *biases, int inputs_, int units_) {
        shape(inputs_, units_);
        for (int u = 0; u < units; u++) {
            bias[u] = biases[u];
            for (int k = 0; k < inputs; k++) at(u, k) = weights[u * inputs + k];
        }
    }
    int chunks() const { return (units + UNITS - 1) / UNITS; }
    float &at(int unit, int input) { return weight[(unit / UNITS * inputs + input) * UNITS + unit % UNITS]; }
};

// Activations of one tile, a row a unit.
template <int TILE>
struct Activations {
    alignas(64) float row[MOST_WIDTH][TILE * LANES];
};

// sums ← weight · in + bias for UNITS units; `in(k)` is where the k-th row begins.
template <int TILE, typename Bias, typename In>
INLINE void accumulate(int inputs, const float *weight, Bias bias, In in, Vector (&sums)[UNITS][TILE]) {
UNROLL(8)
    for (int u = 0; u < UNITS; u++)
UNROLL(4)
        for (int t = 0; t < TILE; t++) sums[u][t] = broadcast(bias(u));
UNROLL(1)
    for (int k = 0; k < inputs; k++, weight += UNITS) {
        const float *row = in(k);
        Vector x[TILE];
UNROLL(4)
        for (int t = 0; t < TILE; t++) x[t] = load(row + t * LANES);
UNROLL(8)
        for (int u = 0; u < UNITS; u++) {
            const Vector factor = broadcast(weight[u]);
UNROLL(4)
            for (int t = 0; t < TILE; t++) sums[u][t] = fused(factor, x[t], sums[u][t]);
        }
    }
}

// out ← relu(weight · in + bias)
template <int TILE, typename In>
INLINE void hidden_layer(const Layer &layer, In in, Activations<TILE> &out) {
    const float *weight = layer.weight.data(), *bias = layer.bias.data();
    for (int chunk = 0; chunk < layer.chunks(); chunk++, weight += layer.inputs * UNITS, bias += UNITS) {
        Vector sums[UNITS][TILE];
        accumulate<TILE>(layer.inputs, weight, [&](int u) { return bias[u]; }, in, sums);
UNROLL(8)
        for (int u = 0; u < UNITS; u++)
UNROLL(4)
            for (int t = 0; t < TILE; t++) store(out.row[chunk * UNITS + u] + t * LANES, relu(sums[u][t]));
    }
}

// out ← weight · in where `active` is positive, else 0: a step backward through a layer and the relu in front of it.
template <int TILE>
INLINE void switched_layer(const Layer &layer, const Activations<TILE> &in, const Activations<TILE> &active,
                           Activations<TILE> &out) {
    const float *weight = layer.weight.data();
    for (int chunk = 0; chunk < layer.chunks(); chunk++, weight += layer.inputs * UNITS) {
        Vector sums[UNITS][TILE];
        accumulate<TILE>(layer.inputs, weight, [](int) { return 0.0f; }, [&](int k) { return in.row[k]; }, sums);
UNROLL(8)
        for (int u = 0; u < UNITS; u++)
UNROLL(4)
            for (int t = 0; t < TILE; t++) {
                const Vector on = load(active.row[chunk * UNITS + u] + t * LANES);
                store(out.row[chunk * UNITS + u] + t * LANES, on > 0.0f ? sums[u][t] : Vector{});
            }
    }
}

// One output of the last layer, out ← weight · in + bias. Two partial sums, for one would wait for itself.
template <int TILE, typename In>
INLINE void output(const float *weight, float bias, int inputs, In in, Vector (&out)[TILE]) {
    Vector even[TILE], odd[TILE];
UNROLL(4)
    for (int t = 0; t < TILE; t++) even[t] = broadcast(bias), odd[t] = Vector{};
    int k = 0;
UNROLL(1)
    for (; k + 1 < inputs; k += 2) {
UNROLL(4)
        for (int t = 0; t < TILE; t++) {
            even[t] = fused(load(in(k) + t * LANES), weight[k], even[t]);
            odd[t] = fused(load(in(k + 1) + t * LANES), weight[k + 1], odd[t]);
        }
    }
UNROLL(4)
    for (int t = 0; t < TILE; t++) {
        if (k < inputs) even[t] = fused(load(in(k) + t * LANES), weight[k], even[t]);
        out[t] = even[t] + odd[t];
    }
}
