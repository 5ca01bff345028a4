// The first half of a step of Kinetic-L2E on any number of tensors: what `kinetic_half_step` computes, to rounding.
//
// The network sees x = (c_θ·θ, c_u·u) with u = g + (λ/N)·θ and c_z = rsqrt(mean z² + FLOOR) over the tensor. Its output f
// and its derivatives ∂f/∂x come from one pass forward and one backward, tile by tile; the product of a vector v with the
// derivative of x = c·z is c·y − c²·z·mean(c·y·z), y = v·∂f/∂x, which needs one more reduction over the tensor:
//
//   SCALES    sums of squares of θ and u
//   NETWORK   f, r_half, c·y for both inputs; sums of c·y·z
//   PULL      (∂f/∂θ)ᵀv and (∂f/∂g)ᵀv
#include <cmath>
#include <new>

#include "phases.h"
#include "scales.h"

struct KineticSettings {
    int32_t layers, threads;
    int32_t widths[8];  // 2, units of the hidden layers, 1
    // r_half ← keep·r − kick·g − pull·θ + heat·ξ + decay·f
    float keep, kick, pull, heat, decay;
    float mean_scale, output_bound, prior_share;  // s; B, 0: none; λ/N
};

enum Row { PARAMETER_ROW, GRADIENT_ROW, NOISE_ROW, MOMENTUM_ROW, MEAN, HALF, DIRECT, THROUGH, ROWS };

struct KineticPiece {
    float *row[ROWS];  // the first four are read, the noise if it is not null; the others are written
    int64_t length, network;
};

namespace {

// One member's network, forward and backward.
struct Weights {
    std::vector<Layer> forward, backward;  // hidden layers; those behind the first, transposed
    std::vector<float> last;
    float last_bias;
};

struct Scales {
    double inverse[2], mean[2];                         // c_θ and c_u; the means of c·y·z
    std::vector<float> weight, bias, column[2];  // the first layer with them in it, as it is read forward and backward
};

struct Rows {
    float *row[ROWS];

    Rows from(int64_t i) const {
        Rows other = *this;
        for (auto &each : other.row) each = each ? each + i : nullptr;
        return other;
    }
};

class HalfStep {
    const KineticSettings &s;
    const KineticPiece *pieces;
    std::vector<Weights> networks;
    std::vector<Scales> scales;
    std::vector<Block> blocks;
    int first_piece = 0;
    const int hidden;

  public:
    HalfStep(const KineticSettings &settings, const KineticPiece *pieces_, const Network *network, int count)
        : s(settings), pieces(pieces_), networks(count), hidden(s.layers - 1) {
        for (int n = 0; n < count; n++) read(networks[n], network, n);
    }

    void run(int64_t piece_count) {
        int64_t total = 0;
        for (int64_t i = 0; i < piece_count; i++) total += pieces[i].length;
        Team team(threads_for(total, s.threads));
        for (int64_t begin = 0, end; begin < piece_count; begin = end) {
            end = group_end(pieces, begin, piece_count, GROUP * s.threads);
            first_piece = static_cast<int>(begin);
            cut(pieces, begin, end, blocks);
            scales.resize(end - begin);
            phase(team, blocks, [&](Block &b) { squares(b); }, [&](int i, Block *from, Block *to) { specialise(i, from, to); });
            phase(team, blocks, [&](Block &b) { pass(b); }, [&](int i, Block *from, Block *to) {
                for (int k = 0; k < 2; k++) scales[i].mean[k] = mean(from, to, k, pieces[first_piece + i].length);
            });
            phase(team, blocks, [&](Block &b) { pull(b); });
        }
    }

  private:
    void read(Weights &into, const Network *network, int member) const {
        into.forward.resize(hidden), into.backward.resize(hidden);
        for (int l = 0; l < hidden; l++) {
            const int inputs = s.widths[l], units = s.widths[l + 1];
            const float *weight = network[l].weight + member * network[l].weight_stride;
            const float *bias = network[l].bias + member * network[l].bias_stride;
            into.forward[l].shape(inputs, units), into.backward[l].shape(units, inputs);
            for (int u = 0; u < units; u++) {
                into.forward[l].bias[u] = bias[u];
                for (int k = 0; k < inputs; k++)
                    into.forward[l].at(u, k) = into.backward[l].at(k, u) = weight[u * inputs + k];
            }
        }
        const Network &last = network[hidden];
        const float *weight = last.weight + member * last.weight_stride;
        into.last.assign(weight, weight + s.widths[hidden]);
        into.last_bias = last.bias[member * last.bias_stride];
    }

    const KineticPiece &piece(const Block &b) const { return pieces[first_piece + b.piece]; }

    Rows rows(const Block &b) const {
        Rows all;
        std::copy(piece(b).row, piece(b).row + ROWS, all.row);
        return all.from(b.start);
    }

    // u at a coordinate or a vector of them
    template <typename Number>
    INLINE Number slope(Number gradient, Number parameter) const {
        return gradient + parameter * s.prior_share;
    }

    void squares(Block &b) {
        const Rows r = rows(b);
        const float *theta = r.row[PARAMETER_ROW], *gradient = r.row[GRADIENT_ROW];
        Vector total{};
        float rest = 0;
        int64_t i = 0, n = b.stop - b.start;
        for (; i + LANES <= n; i += LANES) {
            const Vector u = slope(load(gradient + i), load(theta + i));
            total = fused(u, u, total);
        }
        for (; i < n; i++) rest += slope(gradient[i], theta[i]) * slope(gradient[i], theta[i]);
        b.sums[0] = sum_of_squares(theta, n);
        b.sums[1] = sum(total) + rest;
    }

    void specialise(int i, const Block *from, const Block *to) {
        const KineticPiece &p = pieces[first_piece + i];
        Scales &c = scales[i];
        const Layer &layer = networks[p.network].forward[0];
        for (int k = 0; k < 2; k++) c.inverse[k] = 1 / std::sqrt(mean(from, to, k, p.length) + FLOOR);
        c.weight = layer.weight, c.bias = layer.bias;
        for (size_t at = 0; at < c.weight.size(); at++) c.weight[at] *= static_cast<float>(c.inverse[at / UNITS % 2]);
        for (int k = 0; k < 2; k++) {
            c.column[k].resize(layer.units);
            for (int u = 0; u < layer.units; u++) c.column[k][u] = c.weight[(u / UNITS * 2 + k) * UNITS + u % UNITS];
        }
    }

    template <int WIDTH>
    INLINE void tile(const Block &b, const Rows &at) {
        const KineticPiece &p = piece(b);
        const Weights &net = networks[p.network];
        const Scales &c = scales[b.piece];
        alignas(64) float u[WIDTH * LANES];
        for (int v = 0; v < WIDTH; v++)
            store(u + v * LANES, slope(load(at.row[GRADIENT_ROW] + v * LANES), load(at.row[PARAMETER_ROW] + v * LANES)));
        const float *seen[2] = {at.row[PARAMETER_ROW], u};
        Activations<WIDTH> active[MOST_LAYERS - 1], one, two, *back = &one, *ahead = &two;
        hidden_layer<WIDTH>(2, net.forward[0].chunks(), c.weight.data(), c.bias.data(), [&](int k) { return seen[k]; }, active[0]);
        for (int l = 1; l < hidden; l++) {
            const Layer &layer = net.forward[l];
            const auto &in = active[l - 1];
            hidden_layer<WIDTH>(layer.inputs, layer.chunks(), layer.weight.data(), layer.bias.data(),
                                [&](int k) { return in.row[k]; }, active[l]);
        }
        Vector f[WIDTH], by_input[2][WIDTH];
        output<WIDTH>(net.last.data(), net.last_bias, s.widths[hidden], active[hidden - 1], f);

        for (int k = 0; k < s.widths[hidden]; k++)
            for (int v = 0; v < WIDTH; v++)
                store(back->row[k] + v * LANES,
                      load(active[hidden - 1].row[k] + v * LANES) > 0.0f ? broadcast(net.last[k]) : Vector{});
        for (int l = hidden - 1; l > 0; l--) {
            const Layer &layer = net.backward[l];
            switched_layer<WIDTH>(layer.inputs, layer.chunks(), layer.weight.data(), *back, active[l - 1], *ahead);
            std::swap(back, ahead);
        }
        for (int k = 0; k < 2; k++) output<WIDTH>(c.column[k].data(), 0.0f, s.widths[1], *back, by_input[k]);

        for (int v = 0; v < WIDTH; v++) {
            const int i = v * LANES;
            Vector steepness = broadcast(s.mean_scale), mean = f[v];
            if (s.output_bound > 0) {
                const Vector share = hyperbolic_tangent(mean / s.output_bound);
                mean = share * s.output_bound;
                steepness = (1.0f - share * share) * s.mean_scale;
            }
            mean = mean * s.mean_scale;
            // In the order, and with the roundings, of `sghmc_rule`: with an output of zero this is SGHMC bit for bit.
            Vector r = fused(load(at.row[GRADIENT_ROW] + i), -s.kick, load(at.row[MOMENTUM_ROW] + i) * s.keep);
            if (s.pull != 0) r = fused(load(at.row[PARAMETER_ROW] + i), -s.pull, r);
            if (s.heat != 0) r = fused(load(at.row[NOISE_ROW] + i), s.heat, r);
            r = fused(mean, s.decay, r);
            const Vector pulled = (r - mean) * steepness;
            store(at.row[MEAN] + i, mean);
            store(at.row[HALF] + i, r);
            store(at.row[DIRECT] + i, by_input[0][v] * pulled);
            store(at.row[THROUGH] + i, by_input[1][v] * pulled);
        }
    }

    void pass(Block &b) {
        const Rows r = rows(b);
        const int64_t n = b.stop - b.start;
        int64_t i = 0;
        for (; i + VECTORS * LANES <= n; i += VECTORS * LANES) tile<VECTORS>(b, r.from(i));
        for (; i + LANES <= n; i += LANES) tile<1>(b, r.from(i));
        if (const size_t rest = (n - i) * sizeof(float)) {
            alignas(64) float copies[ROWS][LANES] = {};
            const Rows from = r.from(i);
            Rows copy;
            for (int k = 0; k < ROWS; k++) copy.row[k] = copies[k];
            for (int k = 0; k < MEAN; k++)
                if (from.row[k]) std::memcpy(copies[k], from.row[k], rest);
            tile<1>(b, copy);
            for (int k = MEAN; k < ROWS; k++) std::memcpy(from.row[k], copies[k], rest);
        }
        const float *theta = r.row[PARAMETER_ROW], *gradient = r.row[GRADIENT_ROW];
        const float *direct = r.row[DIRECT], *through = r.row[THROUGH];
        Vector first{}, second{};
        float rest[2] = {0, 0};
        for (i = 0; i + LANES <= n; i += LANES) {
            first = fused(load(direct + i), load(theta + i), first);
            second = fused(load(through + i), slope(load(gradient + i), load(theta + i)), second);
        }
        for (; i < n; i++) rest[0] += direct[i] * theta[i], rest[1] += through[i] * slope(gradient[i], theta[i]);
        b.sums[0] = sum(first) + rest[0], b.sums[1] = sum(second) + rest[1];
    }

    void pull(Block &b) {
        const Rows r = rows(b);
        const Scales &c = scales[b.piece];
        float taken[2];
        for (int k = 0; k < 2; k++) taken[k] = static_cast<float>(c.inverse[k] * c.inverse[k] * c.mean[k]);
        const float *theta = r.row[PARAMETER_ROW], *gradient = r.row[GRADIENT_ROW];
        float *direct = r.row[DIRECT], *through = r.row[THROUGH];
        for (int64_t i = 0, n = b.stop - b.start; i < n; i++) {
            const float w = through[i] - taken[1] * slope(gradient[i], theta[i]);
            direct[i] = direct[i] - taken[0] * theta[i] + s.prior_share * w;
            through[i] = w;
        }
    }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int kinetic_settings_size() { return sizeof(KineticSettings); }

// The first half of a step of `count` tensors; `network` has an entry for each layer. 0, or 1 if memory ran out.
extern "C" __attribute__((visibility("default"))) int kinetic_half_step(
    const KineticSettings *settings, const KineticPiece *pieces, int64_t count, const Network *network, int networks) {
    const FlushToZero mode;
    try {
        HalfStep(*settings, pieces, network, networks).run(count);
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}
