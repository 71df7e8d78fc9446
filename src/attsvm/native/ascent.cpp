// Block coordinate ascent on the dual of the Frobenius programme, one sequence at a time. For each
//
// 1. W z, after the rank-one update that the sequence before it left over;
// 2. the slopes of its rows that are awake, and the largest projected gradient among them;
// 3. sweeps over its multipliers;
// 4. the change of W by these, as a rank-one update for the next sequence.
#include "attsvm.h"
#include "lanes.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

// What an epoch works on: W z of a sequence, its change, slopes and steps of its rows.
struct Room {
    double *moved, *change, *slope, *step;
    int64_t *awake;
};

inline double clipped(const Programme &p, int64_t c, double x) {
    return std::min(std::max(x, p.free_sign[c] ? -INF : 0.0), p.cap[c]);
}

// How far a row's multiplier is from optimal: its slope, where the multiplier can follow it.
inline double missed(const Programme &p, int64_t c, double lam, double slope, double curvature) {
    if (p.free_sign[c]) return std::abs(slope);
    if (slope < 0.0) return lam < p.cap[c] ? -slope : 0.0;
    return lam > 0.0 ? std::min(slope, curvature * lam) : 0.0;
}

// Sweeps over the Gram block of a sequence; whether multipliers have changed.
bool sweep_block(const Programme &p, int64_t first, int64_t count, int64_t taken, const double *gram,
           double *lam, int64_t inner, Room &room) {
    bool changed = false;
    for (int64_t sweep = 0; sweep < inner; ++sweep) {
        bool moving = false;
        for (int64_t r = 0; r < taken; ++r) {
            const int64_t c = room.awake[r];
            const double *row = gram + c * count, before = lam[first + c];
            if (row[c] <= 0.0) continue;
            const double now = clipped(p, first + c, before - room.slope[c] / row[c]);
            const double delta = now - before;
            if (delta == 0.0) continue;
            lam[first + c] = now;
            room.step[c] += delta;
            axpy(room.slope, delta, row, count);
            moving = true;
        }
        if (!moving) break;
        changed = true;
    }
    return changed;
}

// Sweeps over the rows of a sequence without a stored Gram block: W z moves with each multiplier.
bool sweep_rows(const Programme &p, int64_t first, int64_t taken, double size, const double *diagonal,
          double *lam, int64_t inner, Room &room) {
    bool changed = false;
    for (int64_t sweep = 0; sweep < inner; ++sweep) {
        bool moving = false;
        for (int64_t r = 0; r < taken; ++r) {
            const int64_t c = first + room.awake[r];
            if (diagonal[c] <= 0.0) continue;
            const double *D = p.D + c * p.dx, before = lam[c];
            const double slope = dot(D, room.moved, p.dx) - p.b[c];
            const double delta = clipped(p, c, before - slope / diagonal[c]) - before;
            if (delta == 0.0) continue;
            lam[c] += delta;
            room.step[room.awake[r]] += delta;
            axpy(room.moved, delta * size, D, p.dx);
            moving = true;
        }
        if (!moving) break;
        changed = true;
    }
    return changed;
}

// v_r = a_r . x for the listed rows, two at a time.
void products(const double *rows, const int64_t *listed, int64_t count, int64_t d, const double *x,
              double *v) {
    int64_t r = 0;
    for (; r + 1 < count; r += 2)
        dot_two(rows + listed[r] * d, rows + listed[r + 1] * d, x, d, v[listed[r]],
                v[listed[r + 1]]);
    if (r < count) v[listed[r]] = dot(rows + listed[r] * d, x, d);
}

// W += change before^T, and then W z, while each row is at hand.
void move(double *W, int64_t dx, int64_t dz, const double *change, const double *before,
          const double *z, double *moved) {
    for (int64_t r = 0; r < dx; r += 2) {
        double *row = W + r * dz, *next = r + 1 < dx ? row + dz : row;
        if (before) {
            axpy(row, change[r], before, dz);
            if (next != row) axpy(next, change[r + 1], before, dz);
        }
        double last;
        dot_two(row, next, z, dz, moved[r], next != row ? moved[r + 1] : last);
    }
}

}  // namespace

// |z_i|^2 D_i D_i^T of every sequence, one after the other.
PUBLIC void block_grams(const Programme *p, const int64_t *starts, double *grams) {
    for (int64_t i = 0; i < p->n; ++i) {
        const int64_t first = p->offsets[i], count = p->offsets[i + 1] - first;
        const double size = dot(p->Z + i * p->dz, p->Z + i * p->dz, p->dz);
        double *block = grams + starts[i];
        for (int64_t c = 0; c < count; ++c)
            for (int64_t q = 0; q <= c; ++q)
                block[c * count + q] = block[q * count + c] =
                    size * dot(p->D + (first + c) * p->dx, p->D + (first + q) * p->dx, p->dx);
    }
}

// One epoch: per sequence `inner` sweeps over its multipliers, then one rank-one update of W. Rows
// that are asleep are left out, and rows whose multiplier is zero fall asleep where their margin
// exceeds its right-hand side by more than `bar`. The largest projected gradient met on the way,
// before each sequence was changed. Without `grams` slopes come from W z_i as it moves.
PUBLIC double ascend(const Programme *p, const double *grams, const int64_t *starts,
                     const double *diagonal, double *lam, double *W, uint8_t *asleep, double bar,
                     int64_t inner, double *work) {
    int64_t longest = 0;
    for (int64_t i = 0; i < p->n; ++i)
        longest = std::max(longest, p->offsets[i + 1] - p->offsets[i]);
    Room room{work, work + p->dx, work + 2 * p->dx, work + 2 * p->dx + longest,
              (int64_t *)(work + 2 * p->dx + 2 * longest)};
    double worst = 0.0;
    const double *before = nullptr;  // query of the sequence whose change W has yet to take
    for (int64_t i = 0; i < p->n; ++i) {
        const int64_t first = p->offsets[i], count = p->offsets[i + 1] - first;
        int64_t listed = 0, taken = 0;
        for (int64_t c = 0; c < count; ++c)
            if (!asleep[first + c]) room.awake[listed++] = c;
        if (listed == 0) continue;
        const double *z = p->Z + i * p->dz;
        // 1
        move(W, p->dx, p->dz, room.change, before, z, room.moved);
        before = nullptr;
        // 2
        products(p->D + first * p->dx, room.awake, listed, p->dx, room.moved, room.slope);
        double most = 0.0;
        for (int64_t r = 0; r < listed; ++r) {
            const int64_t c = room.awake[r], row = first + c;
            const double slope = room.slope[c] -= p->b[row];
            room.step[c] = 0.0;
            if (lam[row] == 0.0 && slope > bar && !p->free_sign[row]) {
                asleep[row] = 1;
                continue;
            }
            room.awake[taken++] = c;
            most = std::max(most, missed(*p, row, lam[row], slope, diagonal[row]));
        }
        worst = std::max(worst, most);
        if (most == 0.0) continue;
        // 3
        const bool changed =
            grams ? sweep_block(*p, first, count, taken, grams + starts[i], lam, inner, room)
                  : sweep_rows(*p, first, taken, dot(z, z, p->dz), diagonal, lam, inner, room);
        if (!changed) continue;
        // 4
        std::memset(room.change, 0, sizeof(double) * p->dx);
        for (int64_t r = 0; r < taken; ++r) {
            const int64_t c = room.awake[r];
            if (room.step[c] != 0.0)
                axpy(room.change, room.step[c], p->D + (first + c) * p->dx, p->dx);
        }
        before = z;
    }
    for (int64_t r = 0; before && r < p->dx; ++r)
        axpy(W + r * p->dz, room.change[r], before, p->dz);
    return worst;
}
