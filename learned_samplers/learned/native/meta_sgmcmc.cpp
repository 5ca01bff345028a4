// One step of Meta-SGMCMC on any number of tensors, in place: what `meta_sgmcmc_rule` computes with exact derivatives, to
// rounding.
//
// Both networks see the energy u, one number a chain, which is a shift of the first layer's bias, and the momentum; f_D also
// the gradient of the energy. Where they see momentum and gradient divided by their root mean squares over the tensor, sums
// come before each pass:
//
//   SQUARES   sums of squares of r and ∇Ũ/N
//   FIRST     Q, A and their derivatives → new momentum; its sum of squares
//   SECOND    Q and ∂Q/∂r at the new momentum → new parameters
//
// Else a block goes through both passes at once.
#include <cmath>

#include "gradients.h"
#include "phases.h"
#include "rows.h"

struct MetaSettings {
    int32_t layers, threads, noisy, absolute, relative;  // relative: the networks see r and ∇Ũ over their root mean squares
    int32_t widths[8];                                   // 3, units of the hidden layers of each of the two networks, 1
    // Q = clip(curl_offset + curl_scale·f_Q, ±curl_clip);  A = clip(by_square·Q² + constant + friction_scale·f_D,
    // [0, friction_clip]);  ∇Ũ = num_data·g + prior·θ;  pull = T·ε·s_u/N;  taken = ε²·B
    float curl_offset, curl_scale, curl_clip, by_square, constant, friction_scale, friction_clip, num_data, prior, step_size;
    float temperature, pull, taken, gradient_scale, momentum_floor, gradient_floor;
};

enum Row { GRADIENT_ROW, NOISE_ROW, PARAMETER_ROW, MOMENTUM_ROW, ROWS };  // the last two are written too

struct MetaPiece {
    float *row[ROWS];  // the noise is null where none is drawn
    int64_t length, network;
    double energy;  // u
};

namespace {

enum Column { BY_MOMENTUM, BY_ENERGY };

// The first layers of f_Q and f_D for one tensor. 1 − shrink·r² is what the derivative of r over its root mean square has
// besides the division.
struct Firsts {
    First curl, friction;
    float shrink;
};

class MetaStep {
    const MetaSettings &s;
    const MetaPiece *pieces;
    std::vector<Differentiable> curls, frictions;
    std::vector<Firsts> firsts;
    std::vector<Block> blocks;
    int first_piece = 0;

  public:
    MetaStep(const MetaSettings &settings, const MetaPiece *pieces_, const Network *network, int count)
        : s(settings), pieces(pieces_), curls(count), frictions(count) {
        for (int n = 0; n < count; n++) {
            read(curls[n], network, s.layers, n, [&](int l) { return half(l, 0); });
            read(frictions[n], network, s.layers, n, [&](int l) { return half(l, 1); });
            for (float &w : curls[n].last) w *= s.curl_scale;
            for (float &w : frictions[n].last) w *= s.friction_scale;
            curls[n].last_bias = curls[n].last_bias * s.curl_scale + s.curl_offset;
            frictions[n].last_bias *= s.friction_scale;
        }
    }

    void run(int64_t piece_count) {
        in_groups(pieces, piece_count, s.threads, blocks, [&](Team &team, int begin, int end) {
            first_piece = begin;
            firsts.resize(end - begin);
            if (!s.relative) {
                for (int i = 0; i < end - begin; i++) specialise(i, 1, s.gradient_scale / s.num_data);
                phase(team, blocks, [&](Block &b) { first(b), second(b); });
                return;
            }
            phase(team, blocks, [&](Block &b) { squares(b); }, [&](int i, Block *from, Block *to) {
                const double slope = mean(from, to, 1, pieces[first_piece + i].length);
                const double inverse = 1 / std::sqrt(slope + s.gradient_floor);
                specialise(i, of_momentum(i, from, to), s.gradient_scale / s.num_data * inverse);
            });
            phase(team, blocks, [&](Block &b) { first(b); }, [&](int i, Block *from, Block *to) {
                specialise(i, of_momentum(i, from, to), 0);  // f_D is not asked again
            });
            phase(team, blocks, [&](Block &b) { second(b); });
        });
    }

  private:
    // f_Q is the upper half of the rows of every layer, f_D the lower; behind the first layer each reads its own columns.
    Part half(int l, int which) const {
        const int inputs = s.widths[l], units = s.widths[l + 1];
        if (l == 0) return {2 + which, units, 3, which * units, 0};
        return {inputs, units, 2 * inputs, which * units, which * inputs};
    }

    const MetaPiece &piece(const Block &b) const { return pieces[first_piece + b.piece]; }

    Rows<ROWS> rows(const Block &b) const {
        Rows<ROWS> all;
        std::copy(piece(b).row, piece(b).row + ROWS, all.row);
        return all.from(b.start);
    }

    // ∇Ũ at a coordinate or a vector of them
    template <typename Number>
    INLINE Number slope(Number gradient, Number parameter) const {
        const Number scaled = gradient * s.num_data;
        return s.prior != 0 ? scaled + parameter * s.prior : scaled;
    }

    void squares(Block &b) {
        const Rows<ROWS> r = rows(b);
        const float *theta = r.row[PARAMETER_ROW], *gradient = r.row[GRADIENT_ROW], inverse = 1 / s.num_data;
        Vector total{};
        float rest = 0;
        int64_t i = 0, n = b.stop - b.start;
        for (; i + LANES <= n; i += LANES) {
            const Vector u = slope(load(gradient + i), load(theta + i)) * inverse;
            total = fused(u, u, total);
        }
        for (; i < n; i++) {
            const float u = slope(gradient[i], theta[i]) * inverse;
            rest += u * u;
        }
        b.sums[0] = sum_of_squares(r.row[MOMENTUM_ROW], n);
        b.sums[1] = sum(total) + rest;
    }

    double of_momentum(int i, const Block *from, const Block *to) const {
        return 1 / std::sqrt(mean(from, to, 0, pieces[first_piece + i].length) + s.momentum_floor);
    }

    // The factors on momentum and gradient in the first layers' weights, the energy in their biases.
    void specialise(int i, double of_momentum, double of_gradient) {
        const MetaPiece &p = pieces[first_piece + i];
        const Layer &curl = curls[p.network].forward[0], &friction = frictions[p.network].forward[0];
        const float factor = static_cast<float>(of_momentum), energy = static_cast<float>(p.energy);
        Firsts &f = firsts[i];
        f.curl.shape(curl, 1), f.friction.shape(friction, 2);
        f.curl.row(0, curl, 1, factor), f.friction.row(0, friction, 1, factor);
        f.friction.row(1, friction, 2, static_cast<float>(of_gradient));
        f.curl.constant(curl, 0, energy), f.friction.constant(friction, 0, energy);
        f.curl.slope(BY_MOMENTUM, curl, 1, factor), f.friction.slope(BY_MOMENTUM, friction, 1, factor);
        f.curl.slope(BY_ENERGY, curl, 0, 1);
        f.shrink = s.relative ? static_cast<float>(of_momentum * of_momentum / p.length) : 0.0f;
    }

    // Q from its unclipped value; the derivatives are zero where it is clipped.
    template <int COLUMNS, int WIDTH>
    INLINE void clip_curl(Vector (&q)[WIDTH], Vector (&slopes)[COLUMNS][WIDTH]) const {
        for (int v = 0; v < WIDTH; v++) {
            const Vector clipped = clamp(q[v], -s.curl_clip, s.curl_clip);
            for (int c = 0; c < COLUMNS; c++) slopes[c][v] = q[v] == clipped ? slopes[c][v] : Vector{};
            q[v] = clipped;
        }
    }

    INLINE Vector stretch(const Firsts &f, Vector r) const { return 1.0f - r * r * f.shrink; }

    template <int WIDTH>
    INLINE void first_tile(const Block &b, const Rows<ROWS> &at) {
        const Firsts &mine = firsts[b.piece];
        const int64_t network = piece(b).network;
        alignas(64) float gradient[WIDTH * LANES];
        for (int v = 0; v < WIDTH; v++) {
            const int i = v * LANES;
            store(gradient + i, slope(load(at.row[GRADIENT_ROW] + i), load(at.row[PARAMETER_ROW] + i)));
        }
        const float *seen[2] = {at.row[MOMENTUM_ROW], gradient};
        const auto in = [&](int k) { return seen[k]; };
        Vector q[WIDTH], f[WIDTH], by[2][WIDTH] = {}, f_by[1][WIDTH] = {};
        value_and_slopes<WIDTH>(curls[network], mine.curl, in, s.noisy, q, by);
        value_and_slopes<WIDTH>(frictions[network], mine.friction, in, s.noisy, f, f_by);
        clip_curl(q, by);
        for (int v = 0; v < WIDTH; v++) {
            const int i = v * LANES;
            const Vector u = load(gradient + i), r = load(at.row[MOMENTUM_ROW] + i);
            if (s.absolute) {
                f_by[0][v] = f[v] < 0.0f ? -f_by[0][v] : f[v] > 0.0f ? f_by[0][v] : Vector{};
                f[v] = f[v] < 0.0f ? -f[v] : f[v];
            }
            const Vector raw = fused(q[v] * q[v], s.by_square, f[v]) + s.constant;
            const Vector damping = clamp(raw, 0.0f, s.friction_clip);
            Vector moved = r - damping * r;
            moved = fused(q[v] * u, -s.step_size, moved);
            if (s.noisy) {
                const Vector pushed = fused(q[v] * by[BY_MOMENTUM][v], 2 * s.by_square, f_by[0][v]) * stretch(mine, r);
                moved = fused(raw == damping ? pushed : Vector{}, s.temperature, moved);
                moved = fused(by[BY_ENERGY][v] * u, s.pull, moved);
                Vector variance = damping * (2 * s.temperature);
                if (s.taken != 0) {
                    variance = fused(q[v] * q[v], -s.taken, variance);
                    variance = variance < 0.0f ? Vector{} : variance;
                }
                moved = fused(square_root(variance), load(at.row[NOISE_ROW] + i), moved);
            }
            store(at.row[MOMENTUM_ROW] + i, moved);
        }
    }

    void first(Block &b) {
        const Rows<ROWS> r = rows(b);
        const int64_t n = b.stop - b.start;
        tiles(r, n, ROWS, MOMENTUM_ROW, [&](const Rows<ROWS> &at) { first_tile<VECTORS>(b, at); },
              [&](const Rows<ROWS> &at) { first_tile<1>(b, at); });
        if (s.relative) b.sums[0] = sum_of_squares(r.row[MOMENTUM_ROW], n);
    }

    template <int WIDTH>
    INLINE void second_tile(const Block &b, const Rows<ROWS> &at) {
        const Firsts &mine = firsts[b.piece];
        const float *r = at.row[MOMENTUM_ROW];
        Vector q[WIDTH], by[1][WIDTH] = {};
        value_and_slopes<WIDTH>(curls[piece(b).network], mine.curl, [&](int) { return r; }, s.noisy, q, by);
        clip_curl(q, by);
        for (int v = 0; v < WIDTH; v++) {
            const int i = v * LANES;
            Vector velocity = q[v] * load(r + i);
            if (s.noisy) velocity = fused(by[0][v] * stretch(mine, load(r + i)), -s.temperature, velocity);
            store(at.row[PARAMETER_ROW] + i, fused(velocity, s.step_size, load(at.row[PARAMETER_ROW] + i)));
        }
    }

    void second(Block &b) {
        tiles(rows(b), b.stop - b.start, ROWS, PARAMETER_ROW, [&](const Rows<ROWS> &at) { second_tile<VECTORS>(b, at); },
              [&](const Rows<ROWS> &at) { second_tile<1>(b, at); });
    }
};

}  // namespace

EXPORTED int meta_sgmcmc_settings_size() { return sizeof(MetaSettings); }

// The update of `count` tensors in place; `network` has an entry for each layer, both networks side by side. 0, or 1 if
// memory ran out.
EXPORTED int meta_sgmcmc_step(const MetaSettings *settings, const MetaPiece *pieces, int64_t count, const Network *network,
                              int networks) {
    return guarded([&] { MetaStep(*settings, pieces, network, networks).run(count); });
}
