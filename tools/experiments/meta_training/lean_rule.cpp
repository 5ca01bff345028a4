// One step of `LeanRule` of P members, compiled by `lean_rule`.
#include <algorithm>
#include <cmath>
#include <vector>

struct Constants {
    float momentum_decay, largest_gain, log_scale, floor, small, tiny, shares[6], coherences[2];
    int rows[2];  // of the averages whose coherence counts
};

extern "C" void lean_step(const Constants* c, long members, long total, long tensors, const long* edges, long step,
                          const float* hyper, const float* of_features, const float* of_gain,
                          float* rows, float* theta, const float* gradient, const float* noise) {
    std::vector<float> fixed(total);
    const float a = c->momentum_decay;
    for (long p = 0; p < members; p++) {
        const float lr = hyper[4 * p], N = hyper[4 * p + 1], epsilon = std::sqrt(lr / N);
        const float pull = epsilon * hyper[4 * p + 2], heat = std::sqrt(2 * a * hyper[4 * p + 3]);
        const float *w = of_features + 9 * p, *gains = of_gain + 6 * p;
        for (long s = 0; s < tensors; s++) {
            const long begin = edges[s], n = edges[s + 1] - begin;
            float *x[9], squares[9] = {}, factor[9];
            for (int k = 0; k < 9; k++) x[k] = rows + (9 * p + k) * total + begin;
            float *t = theta + p * total + begin, *r = x[2], *sum = fixed.data();
            const float *g = gradient + p * total + begin, *z = noise + p * total + begin;
            for (int k = 0; k < 3; k++) {
                const float* row = k == 0 ? g : k == 1 ? t : r;
                float square = 0;
                for (long j = 0; j < n; j++) square += row[j] * row[j];
                squares[k] = square / n;
            }
            for (int k = 3; k < 9; k++) {
                const float share = c->shares[k - 3];
                float square = 0, *row = x[k];
                for (long j = 0; j < n; j++) {
                    row[j] += share * (g[j] - row[j]);
                    square += row[j] * row[j];
                }
                squares[k] = square / n;
            }
            for (int k = 0; k < 9; k++) factor[k] = w[k] / std::sqrt(squares[k] + c->floor);
            for (long j = 0; j < n; j++) {
                float value = factor[0] * g[j] + factor[1] * t[j];
                for (int k = 3; k < 9; k++) value += factor[k] * x[k][j];
                sum[j] = value;
            }
            float exponent = gains[5];
            exponent += gains[0] * c->log_scale * std::log(squares[0] * lr * N + c->small);
            exponent += gains[1] * c->log_scale * std::log(squares[1] + c->small);
            for (int i = 0; i < 2; i++) {
                const float share = 1 - std::pow(c->coherences[i], float(step + 1));
                const float ratio = (squares[c->rows[i]] / (share * share) + c->tiny) / (squares[0] + c->tiny);
                exponent += gains[3 + i] * c->log_scale * std::log(ratio);
            }
            auto gain = [&](float square) {
                const float e = exponent + gains[2] * c->log_scale * std::log(square + c->small);
                return std::exp(std::min(std::max(e, -c->largest_gain), c->largest_gain));
            };
            float by = gain(squares[2]), of_momentum = by * factor[2], square = 0;
            for (long j = 0; j < n; j++) {
                r[j] += heat * z[j] - epsilon * N * g[j] - pull * t[j] - a * (by * sum[j] + of_momentum * r[j]);
                square += r[j] * r[j];
            }
            square /= n;
            by = gain(square), of_momentum = by * w[2] / std::sqrt(square + c->floor);
            for (long j = 0; j < n; j++) t[j] += epsilon * (by * sum[j] + of_momentum * r[j]);
        }
    }
}
