// Rows of coordinates: those of a tensor that lie one under another, and what is done to all of them tile by tile.
#pragma once

#include <algorithm>

#include "vectors.h"

template <int COUNT>
struct Rows {
    float *row[COUNT];  // some may be null

    Rows from(int64_t i) const {
        Rows other = *this;
        for (auto &each : other.row) each = each ? each + i : nullptr;
        return other;
    }
};

// n coordinates in tiles of VECTORS vectors, then of one; the last, which may be incomplete, on copies. Of the rows those
// before `read` are read, those from `written` on are written.
template <int COUNT, typename Wide, typename Narrow>
INLINE void tiles(const Rows<COUNT> &rows, int64_t n, int read, int written, Wide wide, Narrow narrow) {
    int64_t i = 0;
    for (; i + VECTORS * LANES <= n; i += VECTORS * LANES) wide(rows.from(i));
    for (; i + LANES <= n; i += LANES) narrow(rows.from(i));
    const size_t rest = (n - i) * sizeof(float);
    if (!rest) return;
    alignas(64) float copies[COUNT][LANES] = {};
    const Rows<COUNT> from = rows.from(i);
    Rows<COUNT> copy;
    for (int k = 0; k < COUNT; k++) copy.row[k] = from.row[k] ? copies[k] : nullptr;
    for (int k = 0; k < read; k++)
        if (from.row[k]) std::memcpy(copies[k], from.row[k], rest);
    narrow(copy);
    for (int k = written; k < COUNT; k++) std::memcpy(from.row[k], copies[k], rest);
}
