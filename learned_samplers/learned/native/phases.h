// Tensors in blocks, and phases over them: work on every block on any thread, then a reduction over each tensor's blocks.
#pragma once

#include <algorithm>
#include <new>

#include "team.h"
#include "tensors.h"

inline int threads_for(int64_t coordinates, int threads) {
    return static_cast<int>(std::min<int64_t>(threads, 1 + coordinates / (4 * BLOCK)));
}

// The end of the pieces from `begin` on that have at most `most` coordinates together; at least one.
template <typename AnyPiece>
int64_t group_end(const AnyPiece *pieces, int64_t begin, int64_t count, int64_t most) {
    int64_t size = 0, end = begin;
    for (; end < count && (end == begin || size + pieces[end].length <= most); end++) size += pieces[end].length;
    return end;
}

template <typename AnyPiece>
void cut(const AnyPiece *pieces, int64_t begin, int64_t end, std::vector<Block> &blocks) {
    blocks.clear();
    for (int64_t i = begin; i < end; i++)
        for (int64_t start = 0; start < pieces[i].length; start += BLOCK)
            blocks.push_back({static_cast<int>(i - begin), start, std::min(start + BLOCK, pieces[i].length), {}});
}

template <typename Work>
void phase(Team &team, std::vector<Block> &blocks, Work work) {
    team.each(blocks.size(), [&](int64_t i) { work(blocks[i]); });
}

template <typename Work, typename Reduce>
void phase(Team &team, std::vector<Block> &blocks, Work work, Reduce reduce) {
    phase(team, blocks, work);
    for (size_t i = 0, j; i < blocks.size(); i = j) {
        for (j = i; j < blocks.size() && blocks[j].piece == blocks[i].piece;) j++;
        reduce(blocks[i].piece, blocks.data() + i, blocks.data() + j);
    }
}

// The mean of the k-th sum over a tensor; blocks in a fixed order.
inline double mean(const Block *from, const Block *to, int k, int64_t length) {
    double total = 0;
    for (; from < to; from++) total += from->sums[k];
    return total / length;
}

// All pieces, as many at a time as stay in the cache: body(team, first piece, end), with their blocks made.
template <typename AnyPiece, typename Body>
void in_groups(const AnyPiece *pieces, int64_t count, int threads, std::vector<Block> &blocks, Body body) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += pieces[i].length;
    Team team(threads_for(total, threads));
    for (int64_t begin = 0, end; begin < count; begin = end) {
        end = group_end(pieces, begin, count, GROUP * threads);
        cut(pieces, begin, end, blocks);
        body(team, static_cast<int>(begin), static_cast<int>(end));
    }
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

// What a call from outside does: 0, or 1 if memory ran out.
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
