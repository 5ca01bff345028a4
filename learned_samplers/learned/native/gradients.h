// A network with one output, and the derivatives of the output by one pass backward.
#pragma once

#include <utility>

#include "network.h"
#include "settings.h"

// Hidden layers as they are read forward and, transposed, backward; the last layer.
struct Differentiable {
    std::vector<Layer> forward, backward;
    std::vector<float> last;
    float last_bias;
};

// Where a layer lies in a matrix that may hold more than one: so many columns wide, from this row and column on.
struct Part {
    int inputs, units, wide, row, column;
};

// One member's network; `part(l)` says where its l-th layer lies.
template <typename PartOf>
void read(Differentiable &into, const Network *network, int layers, int member, PartOf part) {
    into.forward.resize(layers - 1), into.backward.resize(layers - 1);
    for (int l = 0; l < layers; l++) {
        const Part p = part(l);
        const float *weight = network[l].weight + member * network[l].weight_stride + p.row * p.wide + p.column;
        const float *bias = network[l].bias + member * network[l].bias_stride + p.row;
        if (l == layers - 1) {
            into.last.assign(weight, weight + p.inputs);
            into.last_bias = *bias;
            return;
        }
        Layer &forward = into.forward[l], &backward = into.backward[l];
        forward.shape(p.inputs, p.units), backward.shape(p.units, p.inputs);
        for (int u = 0; u < p.units; u++) {
            forward.bias[u] = bias[u];
            for (int k = 0; k < p.inputs; k++) forward.at(u, k) = backward.at(k, u) = weight[u * p.wide + k];
        }
    }
}

// The first layer as one tensor has it: `rows` inputs, each with a factor on its weights, constant ones in the bias; and
// the weights of some inputs once more, unit by unit, for the derivatives in them.
struct First {
    int rows = 0;
    std::vector<float> weight, bias, column[2];

    void shape(const Layer &layer, int rows_) {
        rows = rows_, bias = layer.bias;
        weight.assign(static_cast<size_t>(layer.chunks()) * rows * UNITS, 0.0f);
    }
    void row(int k, const Layer &layer, int input, float factor) {
        for (int u = 0; u < layer.units; u++) weight[(u / UNITS * rows + k) * UNITS + u % UNITS] = layer.at(u, input) * factor;
    }
    void constant(const Layer &layer, int input, float value) {
        for (int u = 0; u < layer.units; u++) bias[u] += layer.at(u, input) * value;
    }
    void slope(int c, const Layer &layer, int input, float factor) {
        column[c].resize(layer.units);
        for (int u = 0; u < layer.units; u++) column[c][u] = layer.at(u, input) * factor;
    }
};

// The output at a tile, and where `with_slopes` its derivatives in the first COLUMNS columns; `in(k)` is where the k-th row
// of inputs begins.
template <int WIDTH, int COLUMNS, typename In>
INLINE void value_and_slopes(const Differentiable &net, const First &first, In in, bool with_slopes, Vector (&value)[WIDTH],
                             Vector (&slopes)[COLUMNS][WIDTH]) {
    const int hidden = static_cast<int>(net.forward.size());
    Activations<WIDTH> active[MOST_LAYERS - 1], one, two, *back = &one, *ahead = &two;
    hidden_layer<WIDTH>(first.rows, net.forward[0].chunks(), first.weight.data(), first.bias.data(), in, active[0]);
    for (int l = 1; l < hidden; l++) {
        const Layer &layer = net.forward[l];
        const auto &before = active[l - 1];
        hidden_layer<WIDTH>(layer.inputs, layer.chunks(), layer.weight.data(), layer.bias.data(),
                            [&](int k) { return before.row[k]; }, active[l]);
    }
    const int units = static_cast<int>(net.last.size());
    output<WIDTH>(net.last.data(), net.last_bias, units, active[hidden - 1], value);
    if (!with_slopes) return;
    for (int k = 0; k < units; k++)
        for (int v = 0; v < WIDTH; v++)
            store(back->row[k] + v * LANES,
                  load(active[hidden - 1].row[k] + v * LANES) > 0.0f ? broadcast(net.last[k]) : Vector{});
    for (int l = hidden - 1; l > 0; l--) {
        const Layer &layer = net.backward[l];
        switched_layer<WIDTH>(layer.inputs, layer.chunks(), layer.weight.data(), *back, active[l - 1], *ahead);
        std::swap(back, ahead);
    }
    for (int c = 0; c < COLUMNS; c++)
        output<WIDTH>(first.column[c].data(), 0.0f, net.forward[0].units, *back, slopes[c]);
}
