// A small network at every weight: running averages and the sums that scale its inputs, then the network itself.
//
// The tensors of a step are pieces, a row of a table each: addresses of its rows (the network's inputs, one float a
// coordinate) and its length. What is the same over a tensor is folded into the first layer: the division by a root mean
// square is a factor on its weights, the context a shift of its bias. Ratios to the root of a second moment and the
// logarithms of such roots are made tile by tile and never stored.
//
// `learned_samplers.learned.native.kernel` calls; the torch code of `learned_samplers.learned.features` and `network` is
// the reference, to rounding. Sums run over fixed blocks in a fixed order: the number of threads changes no bit.
#include <algorithm>
#include <new>

#include "network.h"
#include "team.h"

constexpr int MOST_ROWS = 16, MOST_MADE = 8, MOST_AVERAGES = 12, MOST_OUTPUTS = 4, MOST_SLOPES = 4;
constexpr int64_t BLOCK = 2048;

// `Call` of library.py, field by field.
struct Call {
    int32_t threads, plain, averages, seconds;          // of `sums`: rows, running averages of g, of g²
    int32_t layers, rows, ratios, logs, context;         // of `network`: inputs that are given, made, and constant
    int32_t scaled, outputs, gated;                      // rows with a factor; outputs
    int32_t slopes;                                      // derivatives of the one output, in these inputs:
    int32_t slope_input[MOST_SLOPES];
    int32_t widths[8];               // inputs, units of every layer
    int32_t ratio_row[MOST_MADE];    // the row over the root of the second moment
    float ratio_factor[MOST_MADE];   // 1/(1 − dᵗ)
    float average_weight[MOST_AVERAGES];  // 1 − d
    float second_factor;             // 1/(1 − dᵗ) of the second moment
};

struct Network {
    const float *weight, *bias;
    int64_t weight_stride, bias_stride;  // from one member's to the next's
};

namespace {

constexpr float TINY = 1e-16f, LOG_RATIO_FLOOR = 1e-10f, LOG_SCALE = 0.125f, RATIO_BOUND = 8.0f, GATE_BOUND = 6.0f;

struct Block {
    int64_t piece, start, stop;
};

template <typename Work>
void in_blocks(const int64_t *table, int columns, int length, int64_t pieces, int threads, Work &work) {
    std::vector<Block> blocks;
    int64_t total = 0;
    for (int64_t i = 0; i < pieces; i++)
        for (int64_t n = table[i * columns + length], start = 0; start < n; start += BLOCK) {
            blocks.push_back({i, start, std::min(start + BLOCK, n)});
            total += blocks.back().stop - start;
        }
    Team team(static_cast<int>(std::min<int64_t>(threads, 1 + total / (4 * BLOCK))));
    team.each(blocks.size(), [&](int64_t i) { work(blocks[i], i); });
    // What is reduced afterwards goes block by block, in order.
    for (size_t i = 0; i < blocks.size(); i++) work.reduce(blocks[i], i);
}

float sum_of_squares(const float *x, int64_t n) {
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

// ------------------------------------------------------------------------------------------- sums and averages

// A row of the table: `plain` addresses (the gradient first), that of the averages, from one to the next, the length.
struct Sums {
    const Call &c;
    const int64_t *table;
    double *totals;  // a piece's: of each plain row and average squared, of each average of g² itself
    const int columns, count;
    std::vector<double> parts;

    void operator()(const Block &b, int64_t number) {
        const int64_t *row = table + b.piece * columns, n = b.stop - b.start;
        double *found = parts.data() + number * count;
        for (int k = 0; k < c.plain; k++) found[k] = sum_of_squares(reinterpret_cast<const float *>(row[k]) + b.start, n);
        const float *gradient = reinterpret_cast<const float *>(row[0]) + b.start;
        for (int k = 0; k < c.averages + c.seconds; k++) {
            float *average = reinterpret_cast<float *>(row[c.plain]) + k * row[c.plain + 1] + b.start;
            found[c.plain + k] = k < c.averages ? update_average<false>(gradient, average, n, c.average_weight[k])
                                                : update_average<true>(gradient, average, n, c.average_weight[k]);
        }
    }
    void reduce(const Block &b, int64_t number) {
        for (int k = 0; k < count; k++) totals[b.piece * count + k] += parts[number * count + k];
    }
};

// ------------------------------------------------------------------------------------------- the network

// A row of the table: addresses of the rows, of the second moments, of the outputs and the slopes; length, whose network.
struct Pass {
    const Call &c;
    const int64_t *table;
    const float *factor, *context, *log_factor;  // a piece's: of the scaled rows; the constants; over its second moments
    const int columns;
    std::vector<std::vector<Layer>> hidden, backward;  // a member's, from the second layer on
    const Network *layer;

    Pass(const Call &call, const int64_t *table_, const float *factors, const float *contexts, const float *logs,
         int columns_, const Network *network, int64_t members)
        : c(call), table(table_), factor(factors), context(contexts), log_factor(logs), columns(columns_), hidden(members),
          backward(members), layer(network) {
        for (int64_t m = 0; m < members; m++)
            for (int l = 1; l + 1 < c.layers; l++) {
                const Network &from = network[l];
                const float *w = from.weight + m * from.weight_stride;
                hidden[m].emplace_back().read(w, from.bias + m * from.bias_stride, c.widths[l], c.widths[l + 1]);
                if (!c.slopes) continue;
                Layer &back = backward[m].emplace_back();
                back.shape(c.widths[l + 1], c.widths[l]);
                for (int u = 0; u < c.widths[l + 1]; u++)
                    for (int k = 0; k < c.widths[l]; k++) back.at(k, u) = w[u * c.widths[l] + k];
            }
    }

    // What a tile needs of its piece.
    struct Place {
        std::vector<float> weight, bias;  // of the first layer, folded
        Layer first;
        const float *logs;
        const float *last_weight, *last_bias;
        int64_t network;
    };

    template <int WIDTH, bool SLOPES>
    INLINE void tile(const Place &p, const float *const *in, float *const *out) const {
        const float *row[MOST_ROWS + MOST_MADE];
        alignas(64) float made[MOST_MADE][WIDTH * LANES];
        for (int k = 0; k < c.rows; k++) row[k] = in[k];
        if (c.ratios + c.logs) {
            const float *const *second = in + c.rows;
            Vector inverse[WIDTH];
            for (int v = 0; v < WIDTH; v++)
                inverse[v] = reciprocal_root(fused(load(second[0] + v * LANES), c.second_factor, TINY));
            for (int k = 0; k < c.ratios; k++)
                for (int v = 0; v < WIDTH; v++)
                    store(made[k] + v * LANES, clamp(load(in[c.ratio_row[k]] + v * LANES) * (inverse[v] * c.ratio_factor[k]),
                                                     -RATIO_BOUND, RATIO_BOUND));
            for (int k = 0; k < c.logs; k++)
                for (int v = 0; v < WIDTH; v++)
                    store(made[c.ratios + k] + v * LANES,
                          logarithm(fused(load(second[k] + v * LANES), p.logs[k], LOG_RATIO_FLOOR)) * LOG_SCALE);
            for (int k = 0; k < c.ratios + c.logs; k++) row[c.rows + k] = made[k];
        }
        const auto inputs = [&](int k) { return row[k]; };
        Vector y[MOST_OUTPUTS][WIDTH];
        if (c.layers == 1) {
            for (int o = 0; o < c.outputs; o++)
                output<WIDTH>(p.last_weight + o * c.widths[0], p.last_bias[o], c.widths[0], inputs, y[o]);
            finish<WIDTH>(y, out);
            return;
        }
        // Where there is a way back, all layers' activations are kept; else two take turns.
        Activations<WIDTH> active[SLOPES ? MOST_LAYERS - 1 : 2], one, two, *back = &one, *ahead = &two;
        const int depth = c.layers - 1, units = c.widths[depth];
        hidden_layer<WIDTH>(p.first, inputs, active[0]);
        for (int l = 1; l < depth; l++)
            hidden_layer<WIDTH>(hidden[p.network][l - 1], [&](int k) { return active[SLOPES ? l - 1 : (l - 1) % 2].row[k]; },
                                active[SLOPES ? l : l % 2]);
        const auto top = [&](int k) { return active[SLOPES ? depth - 1 : (depth - 1) % 2].row[k]; };
        for (int o = 0; o < c.outputs; o++) output<WIDTH>(p.last_weight + o * units, p.last_bias[o], units, top, y[o]);
        finish<WIDTH>(y, out);
        if constexpr (!SLOPES) return;
        for (int k = 0; k < units; k++)
            for (int v = 0; v < WIDTH; v++)
                store(back->row[k] + v * LANES, load(top(k) + v * LANES) > 0.0f ? broadcast(p.last_weight[k]) : Vector{});
        for (int l = depth - 1; l > 0; l--) {
            switched_layer<WIDTH>(backward[p.network][l - 1], *back, active[SLOPES ? l - 1 : 0], *ahead);
            std::swap(back, ahead);
        }
        for (int s = 0; s < c.slopes; s++) {
            float column[MOST_WIDTH];
            Vector slope[WIDTH];
            for (int u = 0; u < c.widths[1]; u++) column[u] = p.weight[u * c.widths[0] + c.slope_input[s]];
            output<WIDTH>(column, 0.0f, c.widths[1], [&](int k) { return back->row[k]; }, slope);
            for (int v = 0; v < WIDTH; v++) store(out[c.outputs + s] + v * LANES, slope[v]);
        }
    }

    // Opens the gate and writes the outputs.
    template <int WIDTH>
    INLINE void finish(Vector (&y)[MOST_OUTPUTS][WIDTH], float *const *out) const {
        const int heads = c.outputs - c.gated;
        for (int v = 0; v < WIDTH; v++) {
            if (c.gated) y[heads - 1][v] *= exponential(clamp(y[heads][v], -GATE_BOUND, GATE_BOUND));
            for (int o = 0; o < heads; o++) store(out[o] + v * LANES, y[o][v]);
        }
    }

    void fold(Place &p, int64_t piece, int64_t network) const {
        const int inputs = c.widths[0], units = c.widths[1];
        const float *weight = layer[0].weight + network * layer[0].weight_stride;
        const float *bias = layer[0].bias + network * layer[0].bias_stride;
        const float *scale = factor + piece * c.scaled, *constant = context + piece * c.context;
        p.weight.resize(units * inputs), p.bias.resize(units);
        for (int u = 0; u < units; u++, weight += inputs + c.context) {
            for (int k = 0; k < inputs; k++) p.weight[u * inputs + k] = weight[k] * (k < c.scaled ? scale[k] : 1.0f);
            p.bias[u] = bias[u];
            for (int k = 0; k < c.context; k++) p.bias[u] += weight[inputs + k] * constant[k];
        }
    }

    void operator()(const Block &b, int64_t) const {
        if (c.slopes) block<true>(b);
        else block<false>(b);
    }

    template <bool SLOPES>
    void block(const Block &b) const {
        const int reads = c.rows + c.logs, writes = c.outputs + c.slopes;
        const int64_t *row = table + b.piece * columns, network = row[reads + writes + 1];
        thread_local Place p;
        p.network = network, p.logs = log_factor + b.piece * c.logs;
        fold(p, b.piece, network);
        const Network &last = layer[c.layers - 1];
        if (c.layers == 1) {
            p.last_weight = p.weight.data(), p.last_bias = p.bias.data();
        } else {
            p.first.read(p.weight.data(), p.bias.data(), c.widths[0], c.widths[1]);
            p.last_weight = last.weight + network * last.weight_stride;
            p.last_bias = last.bias + network * last.bias_stride;
        }
        const float *in[MOST_ROWS + MOST_MADE];
        float *out[MOST_OUTPUTS + MOST_SLOPES];
        int64_t i = b.start;
        const auto at = [&](int64_t begin) {
            for (int k = 0; k < reads; k++) in[k] = reinterpret_cast<const float *>(row[k]) + begin;
            for (int k = 0; k < writes; k++) out[k] = reinterpret_cast<float *>(row[reads + k]) + begin;
        };
        for (; i + VECTORS * LANES <= b.stop; i += VECTORS * LANES) at(i), tile<VECTORS, SLOPES>(p, in, out);
        for (; i + LANES <= b.stop; i += LANES) at(i), tile<1, SLOPES>(p, in, out);
        if (i == b.stop) return;
        // The last tile, which is incomplete, on copies.
        const size_t rest = (b.stop - i) * sizeof(float);
        alignas(64) float copies[MOST_ROWS + MOST_MADE + MOST_OUTPUTS + MOST_SLOPES][LANES] = {};
        const float *from[MOST_ROWS + MOST_MADE];
        float *to[MOST_OUTPUTS + MOST_SLOPES];
        at(i);
        for (int k = 0; k < reads; k++) std::memcpy(copies[k], in[k], rest), from[k] = copies[k];
        for (int k = 0; k < writes; k++) to[k] = copies[MOST_ROWS + MOST_MADE + k];
        tile<1, SLOPES>(p, from, to);
        for (int k = 0; k < writes; k++)
            if (k < c.outputs - c.gated || k >= c.outputs) std::memcpy(out[k], to[k], rest);
    }
    void reduce(const Block &, int64_t) const {}
};

template <typename Work>
int guarded(Work work) {
    const FlushToZero mode;
    try {
        work();
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int call_size() { return sizeof(Call); }

// Both return 0, or 1 if memory ran out.
EXPORTED int sums(const Call *call, const int64_t *table, int64_t pieces, double *totals) {
    return guarded([&] {
        const int count = call->plain + call->averages + call->seconds, columns = call->plain + 3;
        int64_t blocks = 0;
        for (int64_t i = 0; i < pieces; i++) blocks += (table[i * columns + columns - 1] + BLOCK - 1) / BLOCK;
        Sums work{*call, table, totals, columns, count, std::vector<double>(blocks * count)};
        in_blocks(table, columns, columns - 1, pieces, call->threads, work);
    });
}

EXPORTED int network(const Call *call, const int64_t *table, int64_t pieces, const float *factor, const float *context,
                     const float *log_factor, const Network *layers, int64_t members) {
    return guarded([&] {
        const int length = call->rows + call->logs + call->outputs + call->slopes, columns = length + 2;
        Pass work(*call, table, factor, context, log_factor, columns, layers, members);
        in_blocks(table, columns, length, pieces, call->threads, work);
    });
}
