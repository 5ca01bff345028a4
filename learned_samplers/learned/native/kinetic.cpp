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

#include "gradients.h"
#include "phases.h"
#include "rows.h"
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

struct Scales {
    double inverse[2], mean[2];  // c_θ and c_u; the means of c·y·z
    First first;
};

using Everything = Rows<ROWS>;

class HalfStep {
    const KineticSettings &s;
    const KineticPiece *pieces;
    std::vector<Differentiable> networks;
    std::vector<Scales> scales;
    std::vector<Block> blocks;
    int first_piece = 0;

  public:
    HalfStep(const KineticSettings &settings, const KineticPiece *pieces_, const Network *network, int count)
        : s(settings), pieces(pieces_), networks(count) {
        for (int n = 0; n < count; n++)
            read(networks[n], network, s.layers, n, [&](int l) { return Part{s.widths[l], s.widths[l + 1], s.widths[l], 0, 0}; });
    }

    void run(int64_t piece_count) {
        in_groups(pieces, piece_count, s.threads, blocks, [&](Team &team, int begin, int end) {
            first_piece = begin;
            scales.resize(end - begin);
            phase(team, blocks, [&](Block &b) { squares(b); }, [&](int i, Block *from, Block *to) { specialise(i, from, to); });
            phase(team, blocks, [&](Block &b) { pass(b); }, [&](int i, Block *from, Block *to) {
                for (int k = 0; k < 2; k++) scales[i].mean[k] = mean(from, to, k, pieces[first_piece + i].length);
            });
            phase(team, blocks, [&](Block &b) { pull(b); });
        });
    }

  private:
    const KineticPiece &piece(const Block &b) const { return pieces[first_piece + b.piece]; }

    Everything rows(const Block &b) const {
        Everything all;
        std::copy(piece(b).row, piece(b).row + ROWS, all.row);
        return all.from(b.start);
    }

    // u at a coordinate or a vector of them
    template <typename Number>
    INLINE Number slope(Number gradient, Number parameter) const {
        return gradient + parameter * s.prior_share;
    }

    void squares(Block &b) {
        const Everything r = rows(b);
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
        c.first.shape(layer, 2);
        for (int k = 0; k < 2; k++) {
            c.inverse[k] = 1 / std::sqrt(mean(from, to, k, p.length) + FLOOR);
            c.first.row(k, layer, k, static_cast<float>(c.inverse[k]));
            c.first.slope(k, layer, k, static_cast<float>(c.inverse[k]));
        }
    }

    template <int WIDTH>
    INLINE void tile(const Block &b, const Everything &at) {
        alignas(64) float u[WIDTH * LANES];
        for (int v = 0; v < WIDTH; v++)
            store(u + v * LANES, slope(load(at.row[GRADIENT_ROW] + v * LANES), load(at.row[PARAMETER_ROW] + v * LANES)));
        const float *seen[2] = {at.row[PARAMETER_ROW], u};
        Vector f[WIDTH], by_input[2][WIDTH];
        value_and_slopes<WIDTH>(networks[piece(b).network], scales[b.piece].first, [&](int k) { return seen[k]; }, true, f,
                                by_input);
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
        const Everything r = rows(b);
        const int64_t n = b.stop - b.start;
        tiles(r, n, MEAN, MEAN, [&](const Everything &at) { tile<VECTORS>(b, at); },
              [&](const Everything &at) { tile<1>(b, at); });
        const float *theta = r.row[PARAMETER_ROW], *gradient = r.row[GRADIENT_ROW];
        const float *direct = r.row[DIRECT], *through = r.row[THROUGH];
        Vector first{}, second{};
        float rest[2] = {0, 0};
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            first = fused(load(direct + i), load(theta + i), first);
            second = fused(load(through + i), slope(load(gradient + i), load(theta + i)), second);
        }
        for (; i < n; i++) rest[0] += direct[i] * theta[i], rest[1] += through[i] * slope(gradient[i], theta[i]);
        b.sums[0] = sum(first) + rest[0], b.sums[1] = sum(second) + rest[1];
    }

    void pull(Block &b) {
        const Everything r = rows(b);
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

EXPORTED int kinetic_settings_size() { return sizeof(KineticSettings); }

// The first half of a step of `count` tensors; `network` has an entry for each layer. 0, or 1 if memory ran out.
EXPORTED int kinetic_half_step(const KineticSettings *settings, const KineticPiece *pieces, int64_t count,
                               const Network *network, int networks) {
    return guarded([&] { HalfStep(*settings, pieces, network, networks).run(count); });
}
