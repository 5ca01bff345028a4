// One step of L2E on any number of tensors, in place: what `l2e_rule` and `l2e_precond_rule` compute, to rounding.
//
// A tensor is cut into blocks. Phase by phase, with a reduction over each tensor in between, because every feature is
// divided by a root mean square over its tensor:
//
//   AVERAGES   running averages in place; sums of squares of all that the features are divided by
//   FIRST      features → (α, β, or β·exp γ) → new momentum; its sum of squares
//   FRICTION   only with normalised outputs that also act through the friction: −a·s_β·f·β, divided by β's scale
//   SECOND     features with the new momentum → β → new parameters
//   MOVE       only with normalised outputs: the new parameters, from β divided by its scale
//
// Features are made tile by tile and never stored; those of a whole tensor (the context) are a shift of the first layer's
// bias, and the division by a root mean square a factor on its weights. Sums run over fixed blocks in a fixed order, so that
// the number of threads changes no bit.
#include <cmath>

#include "phases.h"
#include "scales.h"

namespace {

constexpr float GATE_BOUND = 6.0f, RATIO_BOUND = 8.0f, LOG_RATIO_FLOOR = 1e-10f;

class Step {
    const Settings &s;
    const Piece *pieces;
    std::vector<std::vector<Layer>> networks;
    std::vector<Block> blocks;
    std::vector<Whole> wholes;
    int first_piece = 0;
    const int rows, hidden;

  public:
    Step(const Settings &settings, const Piece *pieces_, const Network *network, int count)
        : s(settings), pieces(pieces_), networks(count), rows(3 + s.averages + s.ratios + s.logs + s.extra), hidden(s.layers - 1) {
        for (int n = 0; n < count; n++) {
            networks[n].resize(s.layers);
            for (int l = 0; l < s.layers; l++) pack(s, networks[n][l], network[l], n, l);
        }
    }

    void run(int64_t piece_count) {
        in_groups(pieces, piece_count, s.threads, blocks, [&](Team &team, int begin, int end) {
            first_piece = begin;
            wholes.resize(end - begin);
            in_turn(team, &Step::averages, &Step::after_averages);
            in_turn(team, &Step::first, s.normalise && s.friction_beta != 0 ? &Step::after_output : &Step::after_momentum);
            if (s.normalise && s.friction_beta != 0) in_turn(team, &Step::friction, &Step::after_momentum);
            in_turn(team, &Step::second, s.normalise ? &Step::after_output : nullptr);
            if (s.normalise) in_turn(team, &Step::move, nullptr);
        });
    }

  private:
    void in_turn(Team &team, void (Step::*work)(Block &), void (Step::*reduce)(int, Block *, Block *)) {
        const auto each = [&](Block &b) { (this->*work)(b); };
        if (reduce) phase(team, blocks, each, [&](int i, Block *from, Block *to) { (this->*reduce)(i, from, to); });
        else phase(team, blocks, each);
    }

    const Piece &piece(const Block &b) const { return pieces[first_piece + b.piece]; }

    Tile tile(const Block &b) const {
        const Piece &p = piece(b);
        return Tile{p.gradient, p.parameter, p.momentum, p.noise, s.narrow ? nullptr : static_cast<float *>(p.averages),
                    s.narrow ? static_cast<uint16_t *>(p.averages) : nullptr, p.stride, p.extra}
            .from(b.start);
    }

    // ------------------------------------------------------------ running averages and the scales of the tensors

    void averages(Block &b) {
        const Tile t = tile(b);
        const int64_t n = b.stop - b.start;
        b.sums[GRADIENT] = sum_of_squares(t.gradient, n);
        b.sums[PARAMETER] = sum_of_squares(t.parameter, n);
        b.sums[MOMENTUM] = sum_of_squares(t.momentum, n);
        for (int k = 0; k < s.averages + s.seconds; k++) {
            const float weight = s.average_weight[k];
            double &total = b.sums[AVERAGE + k];
            if (t.narrow) {
                uint16_t *const average = t.narrow + k * t.stride;
                const uint32_t dither = s.dither + k * AVERAGE_DITHER;
                total = k < s.averages ? update_average<false>(t.gradient, average, n, weight, b.start, dither)
                                       : update_average<true>(t.gradient, average, n, weight, b.start, dither);
            } else {
                float *const average = t.averages + k * t.stride;
                total = k < s.averages ? update_average<false>(t.gradient, average, n, weight)
                                       : update_average<true>(t.gradient, average, n, weight);
            }
        }
    }

    double mean(int i, const Block *from, const Block *to, int k) const {
        return ::mean(from, to, k, pieces[first_piece + i].length);
    }

    void after_averages(int i, Block *from, Block *to) {
        Whole &w = wholes[i];
        for (int k = GRADIENT; k < AVERAGE + s.averages + s.seconds; k++) w.means[k] = mean(i, from, to, k);
        for (int k = 0; k < s.seconds; k++)
            w.log_factor[k] = static_cast<float>(1 / (w.means[AVERAGE + s.averages + k] + TINY));
        specialise(i);
    }

    void after_momentum(int i, Block *from, Block *to) {
        wholes[i].means[MOMENTUM] = mean(i, from, to, MOMENTUM);
        specialise(i);
    }

    void after_output(int i, Block *from, Block *to) {
        wholes[i].output_factor = s.output_factor / std::sqrt(FLOOR + mean(i, from, to, OUTPUT));
    }

    void specialise(int i) {
        const Piece &p = pieces[first_piece + i];
        ::specialise(s, networks[p.network][0], p, wholes[i]);
    }

    // ------------------------------------------------------------ the two passes of the network

    // The outputs at the tile; those that are not needed are left as they are.
    template <int WIDTH>
    INLINE void network(const Block &b, const Tile &t, bool with_alpha, bool with_beta, Vector (&alpha)[WIDTH],
                        Vector (&beta)[WIDTH]) {
        const Whole &w = wholes[b.piece];
        const auto &layers = networks[piece(b).network];
        const float *row[MOST_ROWS] = {t.gradient, t.parameter, t.momentum};
        alignas(64) float wide[MOST_AVERAGES + MOST_SECONDS][WIDTH * LANES];
        const float *averages = t.averages;
        int64_t stride = t.stride;
        if (t.narrow) {
            averages = wide[0], stride = WIDTH * LANES;
            for (int k = 0; k < s.averages + s.seconds; k++)
                for (int v = 0; v < WIDTH; v++) store(wide[k] + v * LANES, load(t.narrow + k * t.stride + v * LANES));
        }
        for (int k = 0; k < s.averages; k++) row[3 + k] = averages + k * stride;
        alignas(64) float made[MOST_RATIOS + MOST_SECONDS][WIDTH * LANES];
        if (s.ratios + s.logs) {
            const float *second = averages + s.averages * stride;
            Vector inverse[WIDTH];
            for (int v = 0; v < WIDTH; v++)
                inverse[v] = reciprocal_root(fused(load(second + v * LANES), s.second_correction, static_cast<float>(TINY)));
            for (int k = 0; k < s.ratios; k++) {
                const float *from = s.ratio_average[k] < 0 ? t.gradient : averages + s.ratio_average[k] * stride;
                for (int v = 0; v < WIDTH; v++)
                    store(made[k] + v * LANES, clamp(load(from + v * LANES) * (inverse[v] * s.ratio_correction[k]),
                                                     -RATIO_BOUND, RATIO_BOUND));
            }
            for (int k = 0; k < s.logs; k++, second += stride)
                for (int v = 0; v < WIDTH; v++)
                    store(made[s.ratios + k] + v * LANES,
                          logarithm(fused(load(second + v * LANES), w.log_factor[k], LOG_RATIO_FLOOR)) *
                              static_cast<float>(0.5 * LOG_SCALE));
            for (int k = 0; k < s.ratios + s.logs; k++) row[3 + s.averages + k] = made[k];
        }
        if (s.extra) row[3 + s.averages + s.ratios + s.logs] = t.extra;
        Activations<WIDTH> one, two, *in = &one, *out = &two;
        hidden_layer<WIDTH>(rows, layers[0].chunks(), w.weight.data(), w.bias.data(), [&](int k) { return row[k]; }, *in);
        for (int l = 1; l < hidden; l++) {
            const Layer &layer = layers[l];
            hidden_layer<WIDTH>(layer.inputs, layer.chunks(), layer.weight.data(), layer.bias.data(),
                                [&](int k) { return in->row[k]; }, *out);
            std::swap(in, out);
        }
        const Layer &last = layers[hidden];
        if (with_alpha) bounded<WIDTH>(last.weight.data(), last.bias[0], last.inputs, *in, alpha);
        if (with_beta) bounded<WIDTH>(last.weight.data() + last.inputs, last.bias[1], last.inputs, *in, beta);
        if (with_beta && last.units == 3) {
            Vector gate[WIDTH];
            output<WIDTH>(last.weight.data() + 2 * last.inputs, last.bias[2], last.inputs, *in, gate);
            for (int v = 0; v < WIDTH; v++) beta[v] *= exponential(clamp(gate[v], -GATE_BOUND, GATE_BOUND));
        }
    }

    template <int WIDTH>
    INLINE void bounded(const float *weight, float bias, int inputs, const Activations<WIDTH> &in, Vector (&out)[WIDTH]) {
        output<WIDTH>(weight, bias, inputs, in, out);
        if (s.output_bound > 0)
            for (int v = 0; v < WIDTH; v++) out[v] = hyperbolic_tangent(out[v] / s.output_bound) * s.output_bound;
    }

    template <int WIDTH = VECTORS, typename Wide, typename Narrow>
    void tiles(const Block &b, Wide wide, Narrow narrow) {
        ::tiles<WIDTH>(tile(b), b.stop - b.start, s.averages + s.seconds, wide, narrow);
    }

    template <int WIDTH>
    INLINE void first_tile(const Block &b, const Tile &t) {
        Vector alpha[WIDTH] = {}, beta[WIDTH] = {};
        network<WIDTH>(b, t, s.alpha != 0, s.friction_beta != 0, alpha, beta);
        for (int v = 0; v < WIDTH; v++) {
            const int at = v * LANES;
            // In the order, and with the roundings, of `sghmc_rule`: with outputs of zero this is SGHMC bit for bit.
            Vector r = fused(load(t.gradient + at), -s.kick, load(t.momentum + at) * s.keep);
            if (s.pull != 0) r = fused(load(t.parameter + at), -s.pull, r);
            if (s.heat != 0) r = fused(load(t.noise + at), s.heat, r);
            r = fused(alpha[v], -s.alpha, r);
            if (!s.normalise) r = fused(beta[v], -s.friction_beta, r);
            else if (s.friction_beta != 0) store(t.noise + at, beta[v]);
            store(t.momentum + at, r);
        }
    }

    // r ← (1 − aD)·r − Q·(kick·g + pull·θ) + heat·√D·ξ with the outputs (log Q, log D)
    template <int WIDTH>
    INLINE void first_preconditioned(const Block &b, const Tile &t) {
        Vector curl[WIDTH], damping[WIDTH];
        network<WIDTH>(b, t, true, true, curl, damping);
        for (int v = 0; v < WIDTH; v++) {
            const int at = v * LANES;
            const Vector q = curl_of(curl[v]);
            const Vector d = clamp(exponential(damping[v] * s.alpha), s.friction_low, s.friction_high);
            Vector r = load(t.momentum + at);
            r -= d * r * (1 - s.keep) + q * (load(t.gradient + at) * s.kick + load(t.parameter + at) * s.pull);
            if (s.heat != 0) r += d * reciprocal_root(d) * s.heat * load(t.noise + at);
            store(t.momentum + at, r);
        }
    }

    INLINE Vector curl_of(Vector output) const {
        return clamp(exponential(output * s.velocity_beta), 1 / s.curl_clip, s.curl_clip);
    }

    void first(Block &b) {
        if (s.preconditioned)
            tiles(b, [&](const Tile &t) { first_preconditioned<VECTORS>(b, t); },
                  [&](const Tile &t) { first_preconditioned<1>(b, t); });
        else
            tiles(b, [&](const Tile &t) { first_tile<VECTORS>(b, t); }, [&](const Tile &t) { first_tile<1>(b, t); });
        const Tile t = tile(b);
        if (s.normalise && s.friction_beta != 0) b.sums[OUTPUT] = sum_of_squares(t.noise, b.stop - b.start);
        b.sums[MOMENTUM] = sum_of_squares(t.momentum, b.stop - b.start);
    }

    void friction(Block &b) {
        const Tile t = tile(b);
        const float factor = static_cast<float>(s.friction_beta * wholes[b.piece].output_factor);
        const auto one = [&](const Tile &at) {
            store(at.momentum, fused(load(at.noise), -factor, load(at.momentum)));
        };
        tiles<1>(b, one, one);
        b.sums[MOMENTUM] = sum_of_squares(t.momentum, b.stop - b.start);
    }

    template <int WIDTH>
    INLINE void second_tile(const Block &b, const Tile &t) {
        Vector alpha[WIDTH] = {}, beta[WIDTH] = {};
        network<WIDTH>(b, t, s.preconditioned, !s.preconditioned, alpha, beta);
        for (int v = 0; v < WIDTH; v++) {
            const int at = v * LANES;
            if (s.normalise) {
                store(t.noise + at, beta[v]);
                continue;
            }
            const Vector r = load(t.momentum + at);
            const Vector velocity = s.preconditioned ? curl_of(alpha[v]) * r : fused(beta[v], s.velocity_beta, r * s.inertia);
            store(t.parameter + at, fused(velocity, s.step_size, load(t.parameter + at)));
        }
    }

    void second(Block &b) {
        tiles(b, [&](const Tile &t) { second_tile<VECTORS>(b, t); }, [&](const Tile &t) { second_tile<1>(b, t); });
        if (s.normalise) b.sums[OUTPUT] = sum_of_squares(tile(b).noise, b.stop - b.start);
    }

    void move(Block &b) {
        const float factor = static_cast<float>(s.velocity_beta * wholes[b.piece].output_factor);
        const auto one = [&](const Tile &at) {
            const Vector velocity = fused(load(at.noise), factor, load(at.momentum) * s.inertia);
            store(at.parameter, fused(velocity, s.step_size, load(at.parameter)));
        };
        tiles<1>(b, one, one);
    }
};

}  // namespace

EXPORTED int l2e_settings_size() { return sizeof(Settings); }

// The update of `count` tensors in place; `network` has an entry for each layer. 0, or 1 if memory ran out.
EXPORTED int l2e_step(const Settings *settings, const Piece *pieces, int64_t count, const Network *network, int networks) {
    return guarded([&] { Step(*settings, pieces, network, networks).run(count); });
}
