// The Frobenius programme of few rows, hard or soft, in one call:
//
// 1. rows, right-hand sides and caps are brought near one by powers of two (prepare);
// 2. the Gram matrix (gram);
// 3. sweeps of coordinate ascent guess the active rows (sweep);
// 4. the method of active sets ends in multipliers or in a contradiction (solve);
// 5. the weights are refined on the rows themselves (refine);
// 6. where a sign is wrong, step 4 is repeated with the slopes that the weights have;
// 7. norm, gap, violation and rounding of the weights (certify).
#include "active_set.hpp"
#include "rows.hpp"

#include <cstdlib>

namespace {

enum Verdict : int64_t { UNSETTLED = 0, WEIGHTS = 1, PROVED_INFEASIBLE = 2 };

constexpr int64_t LARGEST_EXPONENT = 100;  // data within 2^+-100: no square leaves float64
constexpr int64_t BLOCK = 4 * WIDE;        // columns of the Gram matrix that are made at a time
constexpr int64_t SHORT = 64;  // rows up to which an update costs less than to foresee its need
constexpr int64_t SWEEPS = 8, SHORT_SWEEPS = 6;  // and where rows are few enough to be SHORT
constexpr int REFINEMENTS = 5, CORRECTIONS = 3, RESCALINGS = 3;
constexpr double EPS = 2.220446049250313e-16;
constexpr double ROUNDING = 4e-16;    // a ratio of margins this near to one is one
constexpr double MISSED = 1e-14;      // slopes of the quadratic programme that count as zero
constexpr double IDLE = 1e-12;        // share of the largest multiplier that is rounding
constexpr double VANISHED = 1e-14;    // residual of a contradiction, relative to its gain
// Rows so much larger than others that the rounding of weights of size one hides their margins:
// their factor of the right-hand side, and what is asked for in addition.
constexpr double TINY_FACTOR = 1.52587890625e-05, RAISED = 1e-13;

inline int64_t padded(int64_t m) { return (m + 15) / 16 * 16; }

// One programme of a batch, its solution, and arrays to work in.
struct Case {
    int64_t m, n, dx, dz, width;        // rows, sequences, sizes; m rounded up to whole registers
    const double *D, *Z, *rhs, *start;  // the caller's rows; multipliers to begin with, or null
    double slack;                       // penalty of soft margins, infinite for hard ones
    double *W, *dual, *values, *figures;  // of the caller's programme

    // The scaled programme: rows near one, right-hand sides at most one. All factors are powers of
    // two, so that scaling rounds nothing.
    double *rows, *rows_T, *queries;    // (m, dx), (dx, width), (n, dz)
    double *row_factor, *query_factor;  // rows = row_factor * D, queries = query_factor * Z
    double *factor;                     // (m) product of the two: of a_c = d_c z^T
    double *rhs_factor, *dual_factor;   // b = rhs_factor * rhs, dual = dual_factor * lam
    double weight_factor;               // W = weight_factor * weights of the scaled programme
    double *b, *cap;                    // (m) right-hand sides, upper bounds of the multipliers
    double *corrected;                  // (m) right-hand sides less what the Gram matrix rounds
    double *query_grams, *G;            // (n, n) products of queries, (m, m) Gram matrix
    double *query_products;             // (n, width) of a query with those of all rows
    double *inverse, *slope, *lam;      // (m) 1 / G_cc, G lam - b, multipliers
    double *step, *moved, *adjoint;     // (m), (dx) W z, (dx, dz)
    int64_t *begin;                     // (n + 1) where the rows of each sequence begin
    uint8_t *free_sign;                 // (m) zeros: no row is free of sign
    ActiveSet set;

    // how many doubles all these take
    static int64_t doubles(int64_t m, int64_t n, int64_t dx, int64_t dz) {
        const int64_t w = padded(m);
        return m * dx + dx * w + n * dz + n * n + 2 * (m * m + 16) + (n + 19) * (w + 16)
               + 2 * n + 2 + dx + dx * dz;
    }

    // Point the arrays to their places, one after the other from `at` on.
    void assign(double *at) {
        width = padded(m);
        auto take = [&](double *&p, int64_t count) { p = at, at += count; };
        take(rows, m * dx), take(rows_T, dx * width), take(queries, n * dz);
        take(query_grams, n * n), take(G, m * m + 16), take(set.factor, m * m + 16);
        for (double **array : {&row_factor, &factor, &rhs_factor, &dual_factor, &b, &corrected,
                               &cap, &inverse, &slope, &lam, &step})
            take(*array, width + 16);
        take(set.work, 4 * (width + 16)), take(query_factor, n), take(query_products, n * width);
        take(moved, dx), take(adjoint, dx * dz);
        begin = (int64_t *)at, at += n + 1;
        set.rows = (int64_t *)at, at += m;
        set.side = (uint8_t *)at, free_sign = set.side + m;
        std::memset(free_sign, 0, m);
        set.m = m, set.rank = dx * dz;
    }
};

// Powers of two that bring the largest entry of every row into [1/2, 1), 1 for rows of zeros;
// false outside the range.
inline bool scales(const double *rows, int64_t count, int64_t d, double *factor) {
    bool inside = true;
    for (int64_t c = 0; c < count; ++c) {
        double peak = 0.0;
        for (int64_t k = 0; k < d; ++k) peak = std::max(peak, std::abs(rows[c * d + k]));
        uint64_t bits;  // read and written as they lie in memory: frexp and ldexp are calls
        std::memcpy(&bits, &peak, 8);
        const int64_t exponent = bits ? (int64_t)(bits >> 52) - 1022 : 0;
        inside &= -LARGEST_EXPONENT <= exponent && exponent <= LARGEST_EXPONENT;
        bits = (uint64_t)(1023 - exponent) << 52;
        std::memcpy(factor + c, &bits, 8);
    }
    return inside;
}

inline int64_t exponent_of(double x) {
    int e;
    std::frexp(x, &e);
    return e;
}

// The scaled programme; false where a size is out of range, or a row is zero and asks for a margin.
bool prepare(Case &p) {
    const int64_t m = p.m, dx = p.dx, dz = p.dz, w = p.width;
    if (!scales(p.D, m, dx, p.row_factor) || !scales(p.Z, p.n, dz, p.query_factor)) return false;
    for (int64_t i = 0; i < p.n; ++i)
        for (int64_t k = 0; k < dz; ++k)
            p.queries[i * dz + k] = p.Z[i * dz + k] * p.query_factor[i];
    for (int64_t i = 0; i < p.n; ++i)
        for (int64_t j = 0; j <= i; ++j)
            p.query_grams[i * p.n + j] = p.query_grams[j * p.n + i] =
                dot(p.queries + i * dz, p.queries + j * dz, dz);
    // `top`: exponent of the largest right-hand side of a row near one
    int64_t top = -100000, exponent = 0;
    double known = 0.0;
    for (int64_t i = 0; i < p.n; ++i)
        for (int64_t c = p.begin[i]; c < p.begin[i + 1]; ++c) {
            for (int64_t k = 0; k < dx; ++k)
                p.rows_T[k * w + c] = p.rows[c * dx + k] = p.D[c * dx + k] * p.row_factor[c];
            p.factor[c] = p.row_factor[c] * p.query_factor[i];
            if (!(p.rhs[c] > 0.0)) continue;
            if (p.rhs[c] != known) known = p.rhs[c], exponent = exponent_of(known);
            if (std::abs(exponent) > LARGEST_EXPONENT) return false;
            top = std::max(top, exponent + exponent_of(p.factor[c]) - 1);
        }
    if (top == -100000) return false;
    for (int64_t k = 0; k < dx; ++k)
        for (int64_t c = m; c < w; ++c) p.rows_T[k * w + c] = 0.0;
    const double down = std::ldexp(1.0, -top);
    p.weight_factor = std::ldexp(1.0, top);
    for (int64_t c = 0; c < m; ++c) {
        p.rhs_factor[c] = p.factor[c] * down;
        p.dual_factor[c] = p.factor[c] * p.weight_factor;
        p.b[c] = p.rhs[c] * p.rhs_factor[c];
        if (p.rhs_factor[c] < TINY_FACTOR && p.slack == INF) p.b[c] += RAISED;
        p.cap[c] = p.slack / p.dual_factor[c];
    }
    return true;
}

// Four lanes of a row from `column` on, of which `m` entries exist, times weights.
inline void store(double *row, int64_t m, int64_t column, const double *weight, Lane a, Lane b,
                  Lane c, Lane d) {
    double last[BLOCK], *to = column + BLOCK <= m ? row + column : last;
    weight += column;
    at(to) = a * at(weight), at(to + WIDE) = b * at(weight + WIDE);
    at(to + 2 * WIDE) = c * at(weight + 2 * WIDE), at(to + 3 * WIDE) = d * at(weight + 3 * WIDE);
    if (to == last) std::memcpy(row + column, last, sizeof(double) * (m - column));
}

// The Gram matrix, two rows at a time.
void gram(Case &p) {
    const int64_t m = p.m, dx = p.dx, w = p.width;
    for (int64_t i = 0; i < p.n; ++i)
        for (int64_t j = 0; j < p.n; ++j)
            for (int64_t q = p.begin[j]; q < p.begin[j + 1]; ++q)
                p.query_products[i * w + q] = p.query_grams[i * p.n + j];
    int64_t i = 0;
    for (int64_t c = 0; c < m; c += 2) {
        const bool pair = c + 1 < m;
        const double *a = p.rows + c * dx, *b = pair ? a + dx : a;
        while (p.begin[i + 1] <= c) ++i;
        const double *mine = p.query_products + i * w;
        while (pair && p.begin[i + 1] <= c + 1) ++i;
        const double *next = p.query_products + i * w;
        for (int64_t q = 0; q < m; q += BLOCK) {
            const double *other = p.rows_T + q;
            Lane s0 = a[0] * at(other), s1 = a[0] * at(other + WIDE);
            Lane s2 = a[0] * at(other + 2 * WIDE), s3 = a[0] * at(other + 3 * WIDE);
            Lane t0 = b[0] * at(other), t1 = b[0] * at(other + WIDE);
            Lane t2 = b[0] * at(other + 2 * WIDE), t3 = b[0] * at(other + 3 * WIDE);
            for (int64_t k = 1; k < dx; ++k) {
                other += w;
                s0 += a[k] * at(other), t0 += b[k] * at(other);
                s1 += a[k] * at(other + WIDE), t1 += b[k] * at(other + WIDE);
                s2 += a[k] * at(other + 2 * WIDE), t2 += b[k] * at(other + 2 * WIDE);
                s3 += a[k] * at(other + 3 * WIDE), t3 += b[k] * at(other + 3 * WIDE);
            }
            store(p.G + c * m, m, q, mine, s0, s1, s2, s3);
            if (pair) store(p.G + (c + 1) * m, m, q, next, t0, t1, t2, t3);
        }
    }
}

// Written out, so that each is one instruction.
inline double clipped(double x, double cap) {
    const double positive = x > 0.0 ? x : 0.0;
    return positive < cap ? positive : cap;
}

// Coordinate ascent from zero. Two coordinates move at a time, and the slope of the next one is
// read before all slopes are written, so that the loop waits for arithmetic and not for memory.
void sweep(Case &p) {
    const int64_t m = p.m;
    double *RESTRICT x = p.lam, *RESTRICT slope = p.slope;
    for (int64_t c = 0; c < m; ++c) {
        const double square = p.G[c * m + c];
        p.inverse[c] = square > 0.0 ? 1.0 / square : 0.0;
        x[c] = 0.0;
        slope[c] = -p.b[c];
    }
    const int64_t sweeps = m > SHORT ? SWEEPS : SHORT_SWEEPS;
    double first = slope[0];
    for (int64_t count = 0; count < sweeps; ++count)
        for (int64_t c = 0; c < m; c += 2) {
            const bool pair = c + 1 < m;
            const double *row = p.G + c * m, *below = pair ? row + m : row;
            const int64_t after = c + 2 < m ? c + 2 : 0;
            const double change = clipped(x[c] - first * p.inverse[c], p.cap[c]) - x[c];
            x[c] += change;
            double other = 0.0;
            if (pair) {
                const double now = slope[c + 1] + change * row[c + 1];
                other = clipped(x[c + 1] - now * p.inverse[c + 1], p.cap[c + 1]) - x[c + 1];
                x[c + 1] += other;
            }
            first = slope[after] + change * row[after] + other * below[after];
            if (m > SHORT && change == 0.0 && other == 0.0) continue;
            int64_t q = 0;
            for (; q + WIDE <= m; q += WIDE)
                at(slope + q) += change * at(row + q) + other * at(below + q);
            for (; q < m; ++q) slope[q] += change * row[q] + other * below[q];
        }
}

// The free rows and sides of the multipliers, as in begin(), but with all rows of the factor at
// once: each pivot is taken from all rows below, in sums that do not wait for one another. Upper
// triangle first, then turned.
void begin_at_once(const Quadratic &q, ActiveSet &set) {
    const int64_t m = set.m;
    double *U = set.factor;
    int64_t count = 0, independent = 0;
    for (int64_t c = 0; c < m; ++c) {
        const bool inside = q.lam[c] > 0.0 && q.G[c * m + c] > 0.0;
        set.side[c] = inside && q.lam[c] >= q.cap[c] ? CAPPED : ZERO;
        if (inside && set.side[c] == ZERO) set.rows[count++] = c;
    }
    for (int64_t i = 0; i < count; ++i)
        for (int64_t j = i; j < count; ++j) U[i * m + j] = q.G[set.rows[i] * m + set.rows[j]];
    int64_t *from = (int64_t *)set.work;
    for (int64_t i = 0; i < count; ++i) {
        double *row = U + i * m;
        const int64_t c = set.rows[i];
        if (independent == set.rank || !(row[i] > DEPENDENT * q.G[c * m + c])) continue;
        const double inverse = 1.0 / std::sqrt(row[i]);
        for (int64_t j = i + 1; j < count; ++j) row[j] *= inverse;
        row[i] = inverse;
        for (int64_t j = i + 1; j < count; ++j) {
            // whole registers: what lies left of the diagonal or past the end is not read
            double *RESTRICT below = U + j * m;
            for (int64_t k = j / WIDE * WIDE; k < count; k += WIDE)
                at(below + k) -= row[j] * at((const double *)row + k);
        }
        from[independent] = i;
        set.rows[independent++] = c;
        set.side[c] = FREE;
    }
    for (int64_t i = 0; i < independent; ++i) {
        for (int64_t j = 0; j < i; ++j) U[i * m + j] = U[from[j] * m + from[i]];
        U[i * m + i] = U[from[i] * m + from[i]];
    }
    set.count = independent;
}

// W = sum_c x_c a_c of rows D with queries Z.
void pull(const Case &p, const double *D, const double *Z, const double *x, double *W) {
    std::memset(W, 0, sizeof(double) * p.dx * p.dz);
    add_rows(D, Z, p.begin, 0, p.n, p.dx, p.dz, x, p.moved, W);
}

// v_c = <a_c, W>
void margins(const Case &p, const double *D, const double *Z, const double *W, double *v) {
    margins_of(D, Z, p.begin, 0, p.n, p.dx, p.dz, W, p.moved, v);
}

inline double length(const Case &p, const double *W) {
    return std::sqrt(dot(W, W, p.dx * p.dz));
}

// The weights of the multipliers, with free rows refined until their margins are met to rounding,
// and the margins in p.values; false where that is not reached. `plain` says whether the weights
// are still the sum over the multipliers.
bool refine(Case &p, double &noise, bool &plain) {
    const int64_t m = p.m, k = p.set.count, size = p.dx * p.dz;
    pull(p, p.rows, p.queries, p.lam, p.W);
    plain = true;
    double before = INF;
    for (int count = 0; count <= REFINEMENTS; ++count) {
        margins(p, p.rows, p.queries, p.W, p.values);
        noise = 8.0 * EPS * std::max(1.0, length(p, p.W));
        double missed = 0.0;
        for (int64_t i = 0; i < k; ++i) {
            const int64_t c = p.set.rows[i];
            p.set.work[i] = p.values[c] - p.b[c];
            missed = std::max(missed, std::abs(p.set.work[i]));
        }
        if (missed <= noise / 4.0) return true;
        if (!(missed <= before / 2.0)) return missed <= noise;
        before = missed;
        substitute(p.set.factor, m, k, p.set.work);
        std::memset(p.step, 0, sizeof(double) * m);
        for (int64_t i = 0; i < k; ++i) {
            p.step[p.set.rows[i]] = p.set.work[i];
            p.lam[p.set.rows[i]] -= p.set.work[i];
        }
        pull(p, p.rows, p.queries, p.step, p.adjoint);
        axpy(p.W, -1.0, p.adjoint, size);
        plain = false;
    }
    return false;
}

// Whether some sign is wrong by more than rounding: of a free multiplier, or of another's slope.
bool has_wrong_sign(const Case &p, double noise) {
    bool wrong = false;
    for (int64_t c = 0; c < p.m; ++c) {
        const double slope = p.values[c] - p.b[c];
        const uint8_t side = p.set.side[c];
        wrong |= side == FREE ? p.lam[c] < 0.0 || p.lam[c] > p.cap[c]
                 : side == CAPPED ? slope > noise
                                  : slope < -noise && p.G[c * p.m + c] > 0.0;
    }
    return wrong;
}

// Multipliers whose sum over rows vanishes, refined, without those that are only rounding, in the
// caller's rows; whether the residual is at rounding level there.
bool contradiction(Case &p) {
    const int64_t m = p.m;
    double largest = 0.0, widest = 0.0, highest = 0.0;
    int64_t added = -1;
    for (int64_t c = 0; c < m; ++c) {
        largest = std::max(largest, p.lam[c]);
        if (p.lam[c] > 0.0 && p.set.side[c] != FREE) added = c;
    }
    for (int64_t c = 0; c < m; ++c)
        if (p.lam[c] < IDLE * largest) p.lam[c] = 0.0;
    std::memcpy(p.step, p.lam, sizeof(double) * m);
    if (added >= 0) p.lam[added] = 0.0;
    begin(Quadratic{p.G, p.corrected, p.cap, p.free_sign, p.lam, p.slope}, p.set);
    std::memcpy(p.lam, p.step, sizeof(double) * m);
    for (int64_t c = 0; c < m; ++c)
        if (p.lam[c] > 0.0) {
            widest = std::max(widest, std::sqrt(p.G[c * m + c]) / p.factor[c]);
            highest = std::max(highest, p.rhs[c]);
        }
    for (int count = 0; count < REFINEMENTS; ++count) {
        double gain = 0.0;
        for (int64_t c = 0; c < m; ++c) {
            if (p.lam[c] < 0.0) return false;
            p.dual[c] = p.lam[c] * p.dual_factor[c];
            gain += p.rhs[c] * p.dual[c];
        }
        pull(p, p.D, p.Z, p.dual, p.adjoint);
        if (gain > 0.0 && length(p, p.adjoint) * highest <= VANISHED * gain * widest) return true;
        pull(p, p.rows, p.queries, p.lam, p.W);
        margins(p, p.rows, p.queries, p.W, p.values);
        for (int64_t i = 0; i < p.set.count; ++i) p.set.work[i] = p.values[p.set.rows[i]];
        substitute(p.set.factor, m, p.set.count, p.set.work);
        for (int64_t i = 0; i < p.set.count; ++i) p.lam[p.set.rows[i]] -= p.set.work[i];
    }
    return false;
}

// Weights, multipliers and margins of the caller's programme; for a hard margin the weights are
// rescaled, and figures are norm, gap, violation and rounding.
bool certify(Case &p, bool plain) {
    const int64_t m = p.m, size = p.dx * p.dz;
    double ratio = INF, top = 0.0, reach = 0.0, longest = 0.0, least = 1.0;
    for (int64_t c = 0; c < m; ++c) {
        p.dual[c] = p.lam[c] * p.dual_factor[c];
        if (p.rhs[c] > 0.0) {
            ratio = std::min(ratio, p.values[c] / p.b[c]);
            least = std::min(least, p.rhs[c]);
        }
        p.values[c] /= p.rhs_factor[c];
        const double row = std::sqrt(p.G[c * m + c]) / p.factor[c];
        longest = std::max(longest, row);
        reach += row * p.dual[c];
        top += p.rhs[c] * p.dual[c];
    }
    for (int64_t k = 0; k < size; ++k) p.W[k] *= p.weight_factor;
    if (p.slack < INF) return true;
    if (!plain) pull(p, p.D, p.Z, p.dual, p.adjoint);
    const double combined = length(p, plain ? p.W : p.adjoint);
    for (int count = 0; count < RESCALINGS; ++count) {
        if (!(ratio > 0.0 && ratio < INF)) return false;
        if (std::abs(ratio - 1.0) <= ROUNDING) break;
        const double inverse = 1.0 / ratio;
        for (int64_t k = 0; k < size; ++k) p.W[k] *= inverse;
        margins(p, p.D, p.Z, p.W, p.values);
        ratio = INF;
        for (int64_t c = 0; c < m; ++c)
            if (p.rhs[c] > 0.0) ratio = std::min(ratio, p.values[c] / p.rhs[c]);
    }
    double violation = 0.0;
    for (int64_t c = 0; c < m; ++c) violation = std::max(violation, p.rhs[c] - p.values[c]);
    const double upper = length(p, p.W), lower = top / combined;
    p.figures[0] = upper;
    p.figures[1] = std::max(0.0, 1.0 - lower / upper);
    p.figures[2] = violation;
    // by Cauchy and Schwarz; where that is too much, the caller computes with more digits
    p.figures[3] = EPS * std::max(longest * upper / least, reach / combined);
    return true;
}

Verdict solve_case(Case &p, int64_t &steps) {
    const int64_t m = p.m;
    steps = 0;
    if (!prepare(p)) return UNSETTLED;  // 1
    gram(p);                            // 2
    const bool soft = p.slack < INF;
    for (int64_t c = 0; c < m; ++c)
        if (!soft && p.G[c * m + c] == 0.0 && p.rhs[c] > 0.0) return UNSETTLED;
    if (p.start)
        for (int64_t c = 0; c < m; ++c) p.lam[c] = clipped(p.start[c] / p.dual_factor[c], p.cap[c]);
    else
        sweep(p);  // 3
    std::memcpy(p.corrected, p.b, sizeof(double) * m);
    const Quadratic q{p.G, p.corrected, p.cap, p.free_sign, p.lam, p.slope};
    begin_at_once(q, p.set);
    for (int64_t c = 0; soft && c < m; ++c)  // margins of rows of zeros are missed
        if (p.G[c * m + c] == 0.0 && p.rhs[c] > 0.0) p.set.side[c] = CAPPED;
    bool plain = true;
    double noise = 0.0;
    for (int count = 0; count <= CORRECTIONS; ++count) {
        const Outcome outcome = solve(q, p.set, MISSED, steps + 20 * m + 100, steps);  // 4
        if (outcome == STOPPED) return UNSETTLED;
        if (outcome == CONTRADICTION) {
            if (!contradiction(p)) return UNSETTLED;
            p.figures[0] = INF, p.figures[1] = 1.0, p.figures[3] = 0.0;
            p.figures[2] = *std::max_element(p.rhs, p.rhs + m);
            std::memset(p.W, 0, sizeof(double) * p.dx * p.dz);
            return PROVED_INFEASIBLE;
        }
        if (!refine(p, noise, plain)) return UNSETTLED;  // 5
        if (!has_wrong_sign(p, noise)) return certify(p, plain) ? WEIGHTS : UNSETTLED;  // 7
        // 6: what the Gram matrix takes for the slopes becomes what they are in the weights
        slopes(q, p.set);
        for (int64_t c = 0; c < m; ++c) p.corrected[c] += p.slope[c] - (p.values[c] - p.b[c]);
    }
    return UNSETTLED;
}

}  // namespace

// The programmes from `first` to before `last`; false where there is no memory to work in.
PUBLIC int64_t solve_programmes(const Batch *batch, int64_t first, int64_t last) {
    int64_t most = 0;
    auto rows = [&](int64_t k) { return batch->offsets[batch->instances[k]]; };
    for (int64_t k = first; k < last; ++k)
        most = std::max(most, Case::doubles(rows(k + 1) - rows(k),
                                         batch->instances[k + 1] - batch->instances[k], batch->dx,
                                         batch->dz));
    double *room = (double *)std::malloc(sizeof(double) * most);
    if (!room) return 0;
    for (int64_t k = first; k < last; ++k) {
        const int64_t from = batch->instances[k], start = rows(k);
        Case p;
        p.n = batch->instances[k + 1] - from, p.m = rows(k + 1) - start;
        p.dx = batch->dx, p.dz = batch->dz, p.slack = batch->slack;
        p.D = batch->D + start * p.dx, p.Z = batch->Z + from * p.dz, p.rhs = batch->b + start;
        p.start = batch->start ? batch->start + start : nullptr;
        p.W = batch->W + k * p.dx * p.dz, p.dual = batch->dual + start;
        p.values = batch->values + start, p.figures = batch->figures + 4 * k;
        p.assign(room);
        for (int64_t i = 0; i <= p.n; ++i) p.begin[i] = batch->offsets[from + i] - start;
        batch->outcome[k] = p.m > 0 ? solve_case(p, batch->steps[k]) : UNSETTLED;
    }
    std::free(room);
    return 1;
}
