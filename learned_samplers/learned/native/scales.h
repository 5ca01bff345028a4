// The network's weights as they are read, and the first layer as each tensor's scales and context make it.
#pragma once

#include <cmath>

#include "network.h"
#include "tensors.h"

// Features are x·rsqrt(FLOOR + mean x²); logarithms are flat below TINY and SMALL: as in learned_samplers.learned.features.
constexpr double FLOOR = 1e-5, TINY = 1e-16, SMALL = 1e-8, LOG_SCALE = 0.25;

// A layer of a member as it is read; the factor on α and β goes into the last one, but β's is lost and
// comes later where β is normalised. A third output, the gate, has none.
inline void pack(const Settings &s, Layer &layer, const Network &from, int member, int index) {
    const int inputs = s.widths[index], units = s.widths[index + 1];
    const float *weight = from.weight + member * from.weight_stride, *bias = from.bias + member * from.bias_stride;
    if (index == s.layers - 1) {  // the last layer is read unit by unit
        layer.inputs = inputs, layer.units = units;
        layer.weight.assign(weight, weight + inputs * units), layer.bias.assign(bias, bias + units);
        for (int u = 0; u < (s.normalise ? 1 : 2); u++) {
            for (int k = 0; k < inputs; k++) layer.weight[u * inputs + k] *= s.output_factor;
            layer.bias[u] *= s.output_factor;
        }
        return;
    }
    layer.shape(inputs, units);
    for (int u = 0; u < units; u++) {
        layer.bias[u] = bias[u];
        for (int k = 0; k < inputs; k++) layer.at(u, k) = weight[u * inputs + k];
    }
}

// The c-th feature of the context.
inline double context(const Settings &s, const Whole &w, const Piece &piece, int c) {
    const auto log_root = [](double square) { return 0.5 * LOG_SCALE * std::log(square); };
    const double gradient = w.means[GRADIENT], parameter = w.means[PARAMETER], momentum = w.means[MOMENTUM];
    const double eps2 = s.step_size * s.step_size;
    switch (s.context_kind[c]) {
    case LOG_KICK: return log_root(gradient * s.kick * s.kick + SMALL);
    case LOG_PARAMETER: return log_root(parameter + SMALL);
    case LOG_MOMENTUM: return log_root(momentum + SMALL);
    case LOG_DISPLACEMENT: return log_root((momentum * eps2 + SMALL * SMALL) / (parameter + SMALL));
    case LOG_COHERENCE:
        return log_root((w.means[AVERAGE + s.context_average[c]] / s.context_value[c] + TINY) / (gradient + TINY));
    case LOG_SIZE: return std::log10(static_cast<double>(piece.length)) / 3 - 1;
    case IS_MATRIX: return static_cast<double>(piece.is_matrix);
    default: return s.context_value[c];
    }
}

// The first layer for one tensor: its scales in the weights, its context in the bias.
inline void specialise(const Settings &s, const Layer &layer, const Piece &piece, Whole &w) {
    const int rows = layer.inputs - s.contexts;
    w.weight.resize(layer.bias.size() * rows);
    w.bias = layer.bias;
    const int wide = UNITS * layer.inputs;
    float values[MOST_CONTEXTS];
    for (int c = 0; c < s.contexts; c++) values[c] = static_cast<float>(context(s, w, piece, c));
    for (int chunk = 0; chunk < layer.chunks(); chunk++) {
        const float *from = layer.weight.data() + chunk * wide;
        float *to = w.weight.data() + chunk * UNITS * rows, *bias = w.bias.data() + chunk * UNITS;
        for (int k = 0; k < rows; k++) {
            const float factor = k < 3 + s.averages ? static_cast<float>(1 / std::sqrt(w.means[GRADIENT + k] + FLOOR)) : 1.0f;
            for (int u = 0; u < UNITS; u++) to[k * UNITS + u] = from[k * UNITS + u] * factor;
        }
        for (int c = 0; c < s.contexts; c++)
            for (int u = 0; u < UNITS; u++) bias[u] += from[(rows + c) * UNITS + u] * values[c];
    }
}
