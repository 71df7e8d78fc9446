// The dual active-set method of Goldfarb and Idnani on a Gram matrix, with boxes and free signs.
#pragma once
#include <algorithm>

#include "attsvm.h"
#include "dense.hpp"

namespace {

enum Side : uint8_t { ZERO = 0, FREE = 1, CAPPED = 2, IMPLIED = 3 };
enum Outcome : int64_t { SOLVED = 0, CONTRADICTION = 1, STOPPED = 2 };

constexpr double REDUNDANT = 1e-12;  // distance of right-hand sides that agree up to rounding

// max b^T lambda - 1/2 lambda^T G lambda  over  0 <= lambda <= cap, or any sign.
struct Quadratic {
    const double *G, *b, *cap;  // (m, m), (m), (m)
    const uint8_t *free_sign;   // (m)
    double *lam, *slope;        // (m) multipliers, G lam - b
};

// Take the free row at this position of the factor out, to `side`.
inline void leave(ActiveSet &set, int64_t position, Side side) {
    const int64_t m = set.m;
    set.side[set.rows[position]] = side;
    remove(set.factor, m, set.count, position);
    for (int64_t q = position; q < set.count - 1; ++q) set.rows[q] = set.rows[q + 1];
    --set.count;
}

// Where the multiplier of a row that is not free rests.
inline double bound(const Quadratic &p, const ActiveSet &set, int64_t row) {
    return set.side[row] == CAPPED ? p.cap[row] : 0.0;
}

// The free multipliers that make the slopes of their rows zero; those that leave their box go to
// its side, until none does.
inline int64_t settle(const Quadratic &p, ActiveSet &set) {
    const int64_t m = set.m;
    double *x = set.work;
    int64_t left = 0;
    for (;;) {
        for (int64_t i = 0; i < set.count; ++i) x[i] = p.b[set.rows[i]];
        for (int64_t c = 0; c < m; ++c)
            if (set.side[c] == CAPPED)
                for (int64_t i = 0; i < set.count; ++i)
                    x[i] -= p.cap[c] * p.G[c * m + set.rows[i]];
        substitute(set.factor, m, set.count, x);
        const int64_t before = set.count;
        for (int64_t i = set.count - 1; i >= 0; --i) {
            const int64_t row = set.rows[i];
            if (p.free_sign[row]) continue;
            if (x[i] <= 0.0) leave(set, i, ZERO);
            else if (x[i] >= p.cap[row]) leave(set, i, CAPPED);
        }
        if (set.count == before) break;
        left += before - set.count;
    }
    for (int64_t c = 0; c < m; ++c) p.lam[c] = bound(p, set, c);
    for (int64_t i = 0; i < set.count; ++i) p.lam[set.rows[i]] = x[i];
    return left;
}

// The slopes G lam - b of all rows.
inline void slopes(const Quadratic &p, const ActiveSet &set) {
    for (int64_t c = 0; c < set.m; ++c) p.slope[c] = -p.b[c];
    for (int64_t c = 0; c < set.m; ++c)
        if (p.lam[c] != 0.0) axpy(p.slope, p.lam[c], p.G + c * set.m, set.m);
}

// The row that is missed most, by more than `tol`, and the sign of its step; -1 for none.
inline int64_t most_missed(const Quadratic &p, const ActiveSet &set, double tol, double &sign) {
    int64_t row = -1;
    double most = tol;
    for (int64_t c = 0; c < set.m; ++c) {
        const uint8_t side = set.side[c];
        if (side == FREE || side == IMPLIED || p.G[c * set.m + c] <= 0.0) continue;
        const double slope = p.slope[c];
        const double missed = p.free_sign[c] ? std::abs(slope) : side == CAPPED ? slope : -slope;
        if (missed > most) {
            most = missed;
            row = c;
        }
    }
    if (row >= 0) sign = p.slope[row] < 0.0 ? 1.0 : -1.0;
    return row;
}

// Whether an equality that depends on the free rows, with shares `r`, follows from theirs, up to
// rounding in rows and right-hand sides of size one.
inline bool implied(const Quadratic &p, const ActiveSet &set, int64_t row, const double *r) {
    double side = p.b[row], size = 1.0;
    for (int64_t i = 0; i < set.count; ++i) {
        side -= r[i] * p.b[set.rows[i]];
        size += std::abs(r[i]);
    }
    return std::abs(side) <= REDUNDANT * size;
}

// From the free rows and sides of `set` to the solution, by steps that
//
// 1. choose the row that is missed most, and express it by the free rows: r = G_FF^-1 G_Fc;
// 2. move its multiplier, and those of the free rows by -r, as far as its slope is zero (`full`), a
//    free multiplier reaches a bound (`first`), or the row's multiplier does (`to_bound`);
// 3. end in a contradiction where nothing stops the step: sum lambda_c a_c = 0, b^T lambda > 0;
// 4. let the free row that stopped the step leave, and go on with 1; or the row becomes free, or
//    rests at its bound.
inline Outcome solve(const Quadratic &p, ActiveSet &set, double tol, int64_t most, int64_t &steps) {
    const int64_t m = set.m;
    double *half = set.work, *r = half + m, *change = r + m;
    steps += settle(p, set);
    slopes(p, set);
    bool exact = true;
    while (steps < most) {
        double sign = 1.0;
        const int64_t row = most_missed(p, set, tol, sign);
        if (row < 0) {
            if (exact) return SOLVED;
            steps += settle(p, set);
            slopes(p, set);
            exact = true;
            continue;
        }
        exact = false;
        const double diagonal = p.G[row * m + row];
        while (steps < most) {
            ++steps;
            const int64_t k = set.count;  // 1
            for (int64_t i = 0; i < k; ++i) half[i] = p.G[row * m + set.rows[i]];
            forward(set.factor, m, k, half);
            std::memcpy(r, half, sizeof(double) * k);
            backward(set.factor, m, k, r);
            const double curvature = diagonal - dot(half, half, k);
            const double to_bound = p.free_sign[row] ? INF
                                    : sign > 0.0     ? p.cap[row] - p.lam[row]
                                                     : p.lam[row];
            const bool independent = k < set.rank && curvature > DEPENDENT * diagonal;
            const double full = independent ? std::abs(p.slope[row]) / curvature : INF;
            double length = std::min(to_bound, full);  // 2
            int64_t first = -1;
            for (int64_t i = 0; i < k; ++i) {
                const int64_t c = set.rows[i];
                if (p.free_sign[c]) continue;
                const double down = sign * r[i];
                const double far = down > 0.0   ? p.lam[c] / down
                                   : down < 0.0 ? (p.cap[c] - p.lam[c]) / -down
                                                : INF;
                if (far < length) {
                    length = far;
                    first = i;
                }
            }
            if (!(length < INF)) {  // 3
                if (p.free_sign[row] && implied(p, set, row, r)) {
                    set.side[row] = IMPLIED;
                    break;
                }
                std::memset(p.lam, 0, sizeof(double) * m);
                for (int64_t i = 0; i < k; ++i) {
                    const int64_t c = set.rows[i];
                    p.lam[c] = p.free_sign[c] ? -sign * r[i] : std::max(-sign * r[i], 0.0);
                }
                p.lam[row] = sign;
                return CONTRADICTION;
            }
            std::memset(change, 0, sizeof(double) * m);
            axpy(change, sign, p.G + row * m, m);
            for (int64_t i = 0; i < k; ++i) {
                axpy(change, -sign * r[i], p.G + set.rows[i] * m, m);
                p.lam[set.rows[i]] -= sign * length * r[i];
            }
            axpy(p.slope, length, change, m);
            p.lam[row] += sign * length;
            if (first >= 0) {  // 4
                const int64_t c = set.rows[first];
                const Side side = sign * r[first] > 0.0 ? ZERO : CAPPED;
                leave(set, first, side);
                p.lam[c] = bound(p, set, c);
            } else if (full <= to_bound) {
                append(set.factor, m, k, half, diagonal);
                set.rows[set.count++] = row;
                set.side[row] = FREE;
                break;
            } else {
                set.side[row] = sign > 0.0 ? CAPPED : ZERO;
                p.lam[row] = bound(p, set, row);
                break;
            }
        }
    }
    return STOPPED;
}

// The free rows and sides of these multipliers, without rows that depend on others.
inline void begin(const Quadratic &p, ActiveSet &set) {
    const int64_t m = set.m;
    double *half = set.work;
    set.count = 0;
    for (int64_t c = 0; c < m; ++c) {
        const double lam = p.lam[c];
        set.side[c] = ZERO;
        if (lam == 0.0 || p.G[c * m + c] <= 0.0) continue;
        if (!p.free_sign[c] && (lam < 0.0 || lam >= p.cap[c])) {
            set.side[c] = lam < 0.0 ? ZERO : CAPPED;
            continue;
        }
        for (int64_t i = 0; i < set.count; ++i) half[i] = p.G[c * m + set.rows[i]];
        forward(set.factor, m, set.count, half);
        if (set.count == set.rank) continue;
        if (!append(set.factor, m, set.count, half, p.G[c * m + c])) continue;
        set.rows[set.count++] = c;
        set.side[c] = FREE;
    }
}

}  // namespace
