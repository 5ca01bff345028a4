// What a call hands over; `learned_samplers.learned.native.structures` has the same structures, field by field.
#pragma once

#include <cstdint>

constexpr int MOST_AVERAGES = 8, MOST_SECONDS = 4, MOST_RATIOS = 8, MOST_CONTEXTS = 24;

enum Context { CONSTANT, LOG_KICK, LOG_PARAMETER, LOG_MOMENTUM, LOG_DISPLACEMENT, LOG_COHERENCE, LOG_SIZE, IS_MATRIX };

struct Settings {
    // The features: running averages of g and of g², ratios to the root of the first second moment, logarithms of the roots.
    int32_t averages, seconds, ratios, logs, contexts;
    int32_t layers, normalise, preconditioned, threads;
    int32_t narrow, extra;  // the averages are kept in bfloat16; a last row of features is given
    uint32_t dither;                         // of the step, for their rounding
    int32_t widths[8];                       // inputs, units of the hidden layers, 2 outputs or 3
    int32_t ratio_average[MOST_RATIOS];      // which average; −1: the gradient itself
    int32_t context_kind[MOST_CONTEXTS];     // of `Context`
    int32_t context_average[MOST_CONTEXTS];  // of a coherence: which average
    float average_weight[MOST_AVERAGES + MOST_SECONDS];  // 1 − d
    float ratio_correction[MOST_RATIOS];                 // 1/(1 − dᵗ)
    float second_correction;
    double context_value[MOST_CONTEXTS];  // of a constant: it; of a coherence: (1 − dᵗ)²
    // r ← keep·r − kick·g − pull·θ + heat·ξ − alpha·α − friction_beta·β;  θ ← θ + step_size·(inertia·r + velocity_beta·β)
    float keep, kick, pull, heat, alpha, friction_beta, inertia, velocity_beta, step_size;
    // preconditioned: r ← (1 − (1−keep)·D)·r − Q·(kick·g + pull·θ) + heat·√D·ξ;  θ ← θ + step_size·Q·r, where Q and D are
    // exp(velocity_beta·α) in [1/curl_clip, curl_clip] and exp(alpha·β) in [friction_low, friction_high]
    float curl_clip, friction_low, friction_high;
    float output_factor, output_bound;  // the outputs are multiplied by the first, then held to the second if that is > 0
};

// Of coordinates and averages, for the rounding of narrow averages; `learned_samplers.learned.narrow` has the same.
constexpr uint32_t COORDINATE_DITHER = 0x9E3779B1, AVERAGE_DITHER = 0x85EBCA77;

struct Piece {
    float *parameter;
    const float *gradient;
    float *noise, *momentum;
    void *averages;  // float, or uint16_t where they are narrow
    int64_t length, stride, network;  // stride: from one average to the next
    const float *extra;  // a row of features that is given, or null
    int64_t is_matrix;
};

struct Network {
    const float *weight, *bias;
    int64_t weight_stride, bias_stride;  // from one member to the next
};
