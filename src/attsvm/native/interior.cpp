// Interior points for the linear programmes of the entrywise norms: Mehrotra's predictor and
// corrector (On the implementation of a primal-dual interior point method, 1992).
//
//   l1:    min g^T(u + v)  s.t.  A (u - v) - s = b,       u, v, s >= 0,  zu = g - x, zv = g + x
//   linf:  max tau         s.t.  A w - s = tau b, u = 1/g - w, v = 1/g + w,
//                                zu - zv = x, b^T lam = 1
//
// with x = A^T lam, and g what an entry counts in the norm: sum_e g_e |w_e| or max_e g_e |w_e|.
// Every Newton system is reduced to the multipliers,
//
//   (A Theta A^T + diag(s / lam)) dlam = ...,
//
// and its matrix needs the rows in factors only. Rows of free sign have s = 0. An iteration
//
//   1. keeps the point if its gap is the least so far;
//   2. near the end solves for the vertex of the rows and entries that the point says, if these are
//      what they were an iteration ago;
//   3. makes and factorises the matrix of the step;
//   4. predicts: the direction in which all products go to zero;
//   5. corrects: the direction to the products that the prediction can reach, with what it
//      neglects, and steps almost to the boundary.
#include "attsvm.h"
#include "dense.hpp"

#include <algorithm>
#include <ctime>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace {

constexpr double BOUNDARY = 0.995;  // share of the way to the boundary
constexpr double CLEAR = 1e-2;        // gap from which a vertex may be seen
constexpr double ROUGH = 1e-3;        // gap to which any progress counts, and then half of it
constexpr int64_t IDLE = 5;         // iterations without progress in small programmes
constexpr int64_t BLIND = 30;       // iterations without weights that meet the margins at any scale
constexpr int64_t GLANCE = 10;      // the same in small programmes, which may have no weights
constexpr int64_t OWN = 100;        // rows up to which the factor here is quicker than LAPACK's
constexpr int64_t MOST = 60;        // iterations of a small programme
constexpr int64_t FARTHEST = 480;   // exponents within which nothing leaves float64
constexpr double APART = 1e-8;      // slack of rows that are not active, and multipliers of none
constexpr double PIECE = 2e8;       // multiply-adds between two looks at the clock
constexpr double SPEED = 4e9;       // multiply-adds a second of a factorisation, at least
constexpr int64_t PANEL = 128;      // most columns of a factor that are made between two looks

// The step, at most 1, that leaves positive numbers positive.
double reach(const double *x, const double *dx, int64_t n) {
    Lane most = {};
    int64_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        const Lane t = -at(dx + i) / at(x + i);
        most = t > most ? t : most;
    }
    double t = 1.0;
    for (int q = 0; q < WIDE; ++q) t = std::max(t, most[q]);
    for (; i < n; ++i) t = std::max(t, -dx[i] / x[i]);
    return 1.0 / t;
}

// sum_i (a + t da)_i (b + r db)_i
double ahead(const double *a, const double *da, double t, const double *b, const double *db,
             double r, int64_t n) {
    return dot(a, b, n) + t * dot(da, b, n) + r * dot(a, db, n) + t * r * dot(da, db, n);
}
struct Method {
    const Programme &p;
    Interior &at;
    const Blas *blas;
    int64_t m, k;
    double *K, *diagonal, *side, *moved, *rows, *mixed, *weighted;
    double *val, *missed, *rs, *dlam, *ds, *edge, *left;
    double *x, *theta, *shift, *ru, *rv, *du, *dv, *dzu, *dzv;
    int64_t *tight, *moving;
    int64_t count = 0, entries = 0;  // of the vertex: rows, and entries that move
    int64_t blind = BLIND;
    double weight = 0.0;  // of b b^T in the matrix of linf, across whose kernel it is singular
    double began = seconds_now();

    // Of C's library: C++'s clock needs a library that is not linked everywhere.
    static double seconds_now() {
        std::timespec now;
        std::timespec_get(&now, TIME_UTC);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }

    static int64_t room(const Programme &p) {
        const int64_t m = p.m, k = p.dx * p.dz;
        return m * m + 10 * m + 11 * k + p.dx + (p.n + m) * p.dx;
    }

    Method(const Programme &p, Interior &at, const Blas *blas, double *memory)
        : p(p), at(at), blas(blas), m(p.m), k(p.dx * p.dz) {
        K = take(memory, m * m);
        for (double **array : {&diagonal, &side, &val, &missed, &rs, &dlam, &ds, &edge, &left})
            *array = take(memory, m);
        for (double **array : {&x, &theta, &shift, &ru, &rv, &du, &dv, &dzu, &dzv, &weighted})
            *array = take(memory, k);
        moved = take(memory, p.dx);
        mixed = take(memory, p.n * p.dx);
        rows = take(memory, m * p.dx);
        tight = (int64_t *)take(memory, m);
        moving = (int64_t *)take(memory, k);
    }

    // Whether the time is over, or will be in so many multiply-adds.
    bool late(double work = 0.0) const {
        if (at.seconds == INF) return false;
        return seconds_now() - began + work / SPEED > at.seconds;
    }

    void values(const double *w, double *v) const { ::values(&p, 0, p.n, w, moved, v); }
    void adjoint(const double *lam, double *w) const {
        std::memset(w, 0, sizeof(double) * k);
        ::adjoint(&p, 0, p.n, lam, moved, w);
    }

    // Lower triangle of A Theta A^T: the rows of sequences i and j meet in sum_a D_ca D_c'a mixed_a
    // with mixed_a = sum_e Theta_ae Z_ie Z_je. False where the time is over.
    bool gram() {
        const int64_t dx = p.dx, dz = p.dz;
        for (int64_t i = 0; i < p.n; ++i) {
            const int64_t first = p.offsets[i], last = p.offsets[i + 1];
            if (first == last) continue;
            if (late()) return false;
            for (int64_t a = 0; a < dx; ++a)
                for (int64_t e = 0; e < dz; ++e)
                    weighted[a * dz + e] = theta[a * dz + e] * p.Z[i * dz + e];
            multiply(p.Z, weighted, mixed, i + 1, dx, dz, dx);
            for (int64_t j = 0; j <= i; ++j)
                for (int64_t c = p.offsets[j]; c < p.offsets[j + 1]; ++c)
                    for (int64_t a = 0; a < dx; ++a)
                        rows[c * dx + a] = p.D[c * dx + a] * mixed[j * dx + a];
            if (blas && m > OWN) {
                multiply(p.D + first * dx, rows, K + first * m, last - first, last, dx, m);
                continue;
            }
            for (int64_t c = first; c < last; ++c) {
                const double *row = p.D + c * dx;
                int64_t q = 0;
                for (; q + 2 <= c + 1; q += 2)
                    dot_two(rows + q * dx, rows + (q + 1) * dx, row, dx, K[c * m + q],
                            K[c * m + q + 1]);
                if (q <= c) K[c * m + q] = dot(rows + q * dx, row, dx);
            }
        }
        return true;
    }

    // C = A B^T, (rows, inner) times (columns, inner); C has `stride` entries a row.
    void multiply(const double *A, const double *B, double *C, int64_t rows, int64_t columns,
                  int64_t inner, int64_t stride) const {
        if (blas && m > OWN) {
            const int r = rows, c = columns, n = inner, s = stride;
            const double one = 1.0, zero = 0.0;
            blas->gemm("T", "N", &c, &r, &n, &one, B, &n, A, &n, &zero, C, &s);
            return;
        }
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; ++j)
                C[i * stride + j] = dot(A + i * inner, B + j * inner, inner);
    }

    // The factor of the matrix in its lower triangle; the matrix stays in the upper one and in
    // `diagonal`. Rows that depend on earlier ones get no step.
    bool factorise() {
        double trace = 0.0;
        for (int64_t c = 0; c < m; ++c) {
            if (!p.free_sign[c]) K[c * m + c] += at.s[c] / at.lam[c];
            trace += K[c * m + c];
        }
        weight = 0.0;
        if (at.box) {
            weight = trace / dot(p.b, p.b, m);
            for (int64_t c = 0; c < m; ++c) axpy(K + c * m, weight * p.b[c], p.b, c + 1);
        }
        for (int64_t c = 0; c < m; ++c) diagonal[c] = K[c * m + c];
        constexpr int64_t TILE = 32;
        for (int64_t c0 = 0; c0 < m; c0 += TILE)
            for (int64_t q0 = 0; q0 <= c0; q0 += TILE)
                for (int64_t c = c0; c < std::min(c0 + TILE, m); ++c)
                    for (int64_t q = q0; q < std::min(q0 + TILE, c); ++q)
                        K[q * m + c] = K[c * m + q];
        if (!blas || m <= OWN) {
            cholesky();
            return true;
        }
        const int n = m;
        for (double more = 1e-13; more < 1e-6; more *= 100.0) {
            int failed = 0;
            if (at.seconds == INF)
                blas->potrf("U", &n, K, &n, &failed);
            else if (!panels(failed))
                return false;
            if (!failed) {
                for (int64_t c = 0; c < m; ++c) K[c * m + c] = 1.0 / K[c * m + c];
                return true;
            }
            for (int64_t c = 0; c < m; ++c) {
                for (int64_t q = 0; q < c; ++q) K[c * m + q] = K[q * m + c];
                K[c * m + c] = diagonal[c] * (1.0 + more);
            }
        }
        return false;
    }

    // The factor by panels of columns of the lower triangle, each from those to its left, between
    // which there is a look at the clock; false where the time is over.
    bool panels(int &failed) {
        const int stride = m;
        const double one = 1.0, minus = -1.0;
        for (int64_t first = 0; first < m;) {
            const int64_t rest = m - first;
            const int64_t room = PIECE / std::max(1.0, (double)rest * first);
            const int width = std::min({rest, PANEL, std::max<int64_t>(room, 16)});
            const int below = rest - width, left = first;
            if (late((double)rest * first * width)) return false;
            double *corner = K + first * m + first, *under = corner + width * m;
            const double *before = K + first * m;  // in Fortran's order rows of K are columns
            if (left)
                blas->syrk("U", "T", &width, &left, &minus, before, &stride, &one, corner, &stride);
            if (left && below)
                blas->gemm("T", "N", &width, &below, &left, &minus, before, &stride,
                           before + width * m, &stride, &one, under, &stride);
            blas->potrf("U", &width, corner, &stride, &failed);
            if (failed) return true;
            if (below)
                blas->trsm("L", "U", "T", "N", &width, &below, &one, corner, &stride, under,
                           &stride);
            first += width;
        }
        return true;
    }

    void cholesky() {
        for (int64_t c = 0; c < m; ++c) {
            double *row = K + c * m;
            int64_t q = 0;
            for (; q + 2 <= c; q += 2) {
                double one, two;
                dot_two(K + q * m, K + (q + 1) * m, row, q, one, two);
                row[q] = (row[q] - one) * K[q * m + q];
                two += K[(q + 1) * m + q] * row[q];
                row[q + 1] = (row[q + 1] - two) * K[(q + 1) * m + q + 1];
            }
            if (q < c) row[q] = (row[q] - dot(K + q * m, row, q)) * K[q * m + q];
            const double rest = row[c] - dot(row, row, c);
            row[c] = rest > 1e-15 * row[c] ? 1.0 / std::sqrt(rest) : 1e-80;
        }
    }

    // r <- K^-1 r, refined once.
    void solve(double *r) {
        double *first = left;
        std::memcpy(side, r, sizeof(double) * m);
        substitute(K, m, m, r);
        for (int64_t c = 0; c < m; ++c) first[c] = side[c] - diagonal[c] * r[c];
        for (int64_t c = 0; c + 1 < m; ++c) {
            const double *upper = K + c * m + c + 1;
            first[c] -= dot(upper, r + c + 1, m - c - 1);
            axpy(first + c + 1, -r[c], upper, m - c - 1);
        }
        substitute(K, m, m, first);
        axpy(r, 1.0, first, m);
    }

    // The relative gap of w and lam at the scales at which they are best, or what rows miss that
    // have no scale.
    double gap(const double *w, const double *lam) {
        adjoint(lam, x);
        values(w, val);
        double ratio = INF, largest = 0.0, size = 0.0, dual = 0.0;
        for (int64_t c = 0; c < m; ++c)
            if (p.b[c] > 0.0) ratio = std::min(ratio, val[c] / p.b[c]);
        if (!(ratio > 0.0)) return INF;
        double short_of = 0.0;
        for (int64_t c = 0; c < m; ++c) {
            const double missed = p.b[c] - val[c] / ratio;
            short_of = std::max(short_of, p.free_sign[c] ? std::fabs(missed) : missed);
        }
        for (int64_t e = 0; e < k; ++e) {
            const double entry = std::fabs(w[e]) * at.cost[e];
            const double pull = std::fabs(x[e]) / at.cost[e];
            largest = std::max(largest, at.box ? entry : pull);
            size += at.box ? pull : entry;
        }
        dual = size * largest;
        const double top = dot(lam, p.b, m);
        if (!(dual > 0.0 && dual < INF && top > 0.0)) return INF;
        return std::max(1.0 - ratio * top / dual, short_of);
    }

    double complementarity() const {
        return dot(at.lam, at.s, m) + dot(at.u, at.zu, k) + dot(at.v, at.zv, k);
    }

    // One predictor and corrector; false where the matrix has no factor or the time is over.
    bool step() {
        for (int64_t e = 0; e < k; ++e)
            theta[e] = at.box ? 1.0 / (at.zu[e] / at.u[e] + at.zv[e] / at.v[e])
                              : at.u[e] / at.zu[e] + at.v[e] / at.zv[e];
        // 3. The matrix and its factor.
        if (!gram() || !factorise() || late()) return false;
        ++at.systems;
        const double target_b = at.box ? at.tau : 1.0;
        const double short_of = 1.0 - dot(p.b, at.lam, m);
        for (int64_t c = 0; c < m; ++c) {
            missed[c] = target_b * p.b[c] + at.s[c] - val[c];
            if (at.box) missed[c] += weight * short_of * p.b[c];
            rs[c] = -at.lam[c] * at.s[c];
        }
        if (at.box) {
            std::memcpy(edge, p.b, sizeof(double) * m);
            solve(edge);
        }
        for (int64_t e = 0; e < k; ++e) {
            ru[e] = -at.u[e] * at.zu[e];
            rv[e] = -at.v[e] * at.zv[e];
        }
        int64_t count = 2 * k;
        for (int64_t c = 0; c < m; ++c) count += !p.free_sign[c];
        const double mu = complementarity() / count;
        double dtau = 0.0, one = 1.0, two = 1.0;
        for (int corrected = 0; corrected < 2; ++corrected) {
            // 4. and 5. A direction, and how far primal and dual numbers may go along it.
            if (late()) return false;
            dtau = direction(short_of);
            if (corrected) meet(dtau);
            one = std::min({reach(at.s, ds, m), reach(at.u, du, k), reach(at.v, dv, k)});
            for (int64_t c = 0; c < m; ++c) left[c] = p.free_sign[c] ? 0.0 : dlam[c];
            two = std::min({reach(at.lam, left, m), reach(at.zu, dzu, k), reach(at.zv, dzv, k)});
            if (corrected) break;
            // The products that the prediction reaches say which the correction aims at.
            const double then = ahead(at.lam, dlam, two, at.s, ds, one, m) +
                                ahead(at.u, du, one, at.zu, dzu, two, k) +
                                ahead(at.v, dv, one, at.zv, dzv, two, k);
            const double share = std::max(then / count / mu, 0.0);
            const double target = mu * share * share * share;
            for (int64_t c = 0; c < m; ++c)
                rs[c] = p.free_sign[c] ? 0.0 : target - at.lam[c] * at.s[c] - ds[c] * dlam[c];
            for (int64_t e = 0; e < k; ++e) {
                ru[e] = target - at.u[e] * at.zu[e] - du[e] * dzu[e];
                rv[e] = target - at.v[e] * at.zv[e] - dv[e] * dzv[e];
            }
        }
        one = std::min(1.0, BOUNDARY * one);
        two = std::min(1.0, BOUNDARY * two);
        axpy(at.s, one, ds, m);
        axpy(at.lam, two, dlam, m);
        axpy(at.u, one, du, k);
        axpy(at.v, one, dv, k);
        axpy(at.zu, two, dzu, k);
        axpy(at.zv, two, dzv, k);
        at.tau += one * dtau;
        for (int64_t e = 0; e < k; ++e)
            at.w[e] = at.box ? at.w[e] + one * dv[e] : at.u[e] - at.v[e];
        return true;
    }

    // The slacks of rows that are not tight from the weights, of which fewer digits are lost than
    // of their multipliers.
    void meet(double dtau) {
        const double target = at.box ? at.tau + dtau : 1.0;
        for (int64_t e = 0; e < k; ++e) shift[e] = at.box ? dv[e] : du[e] - dv[e];
        values(shift, left);
        const double slack = *std::max_element(at.s, at.s + m);
        const double most = *std::max_element(at.lam, at.lam + m);
        for (int64_t c = 0; c < m; ++c)
            if (!p.free_sign[c] && at.s[c] * most > at.lam[c] * slack)
                ds[c] = val[c] + left[c] - target * p.b[c] - at.s[c];
    }

    // The Newton direction for the complementarities rs, ru, rv; the step of tau.
    double direction(double short_of) {
        for (int64_t e = 0; e < k; ++e)
            if (at.box) {
                const double off = at.zu[e] - at.zv[e] - x[e];
                shift[e] = (off + ru[e] / at.u[e] - rv[e] / at.v[e]) * theta[e];
            } else {
                const double plus = at.cost[e] - x[e] - at.zu[e];
                const double minus = at.cost[e] + x[e] - at.zv[e];
                shift[e] = (rv[e] - at.v[e] * minus) / at.zv[e] -
                           (ru[e] - at.u[e] * plus) / at.zu[e];
            }
        values(shift, dlam);
        for (int64_t c = 0; c < m; ++c)
            dlam[c] += missed[c] + (p.free_sign[c] ? 0.0 : rs[c] / at.lam[c]);
        solve(dlam);
        double dtau = 0.0;
        if (at.box) {
            dtau = (short_of - dot(p.b, dlam, m)) / dot(p.b, edge, m);
            axpy(dlam, dtau, edge, m);
        }
        for (int64_t c = 0; c < m; ++c)
            ds[c] = p.free_sign[c] ? 0.0 : (rs[c] - at.s[c] * dlam[c]) / at.lam[c];
        adjoint(dlam, dzv);
        for (int64_t e = 0; e < k; ++e) {
            const double pull = dzv[e];
            if (at.box) {
                dv[e] = theta[e] * pull - shift[e];
                du[e] = -dv[e];
                dzu[e] = (ru[e] + at.zu[e] * dv[e]) / at.u[e];
                dzv[e] = (rv[e] - at.zv[e] * dv[e]) / at.v[e];
            } else {
                dzu[e] = at.cost[e] - x[e] - at.zu[e] - pull;
                dzv[e] = at.cost[e] + x[e] - at.zv[e] + pull;
                du[e] = (ru[e] - at.u[e] * dzu[e]) / at.zu[e];
                dv[e] = (rv[e] - at.v[e] * dzv[e]) / at.zv[e];
            }
        }
        return dtau;
    }

    // Keep a point if it is better.
    double consider(const double *w, const double *lam) {
        const double now = gap(w, lam);
        if (now < at.gap) {
            at.gap = now;
            std::memcpy(at.best_w, w, sizeof(double) * k);
            std::memcpy(at.best_lam, lam, sizeof(double) * m);
        }
        return now;
    }

    void run(double enough, int64_t most) {
        for (;;) {
            // 1. The gap of the point.
            const double before = at.gap, now = consider(at.w, at.lam);
            const bool coming = now < (before > ROUGH ? 1.0 : 0.5) * before ||
                                (before >= 1.0 && at.systems < blind);
            at.idle = coming ? 0 : at.idle + 1;
            // 2. The vertex.
            if (at.gap < CLEAR && at.gap > enough && settled() &&
                !late((double)count * count * count)) {
                vertex();
                gap(at.w, at.lam);  // what a step needs to know of the point
            }
            // 3. to 5. The step.
            if (at.gap <= enough || at.idle > at.patience || most-- <= 0 || !step()) return;
        }
    }

    // Which rows are tight and which entries move, into `tight` and `moving`, and whether that is
    // what it was before and yet to be tried.
    bool settled() {
        // Entries that move: their distance to the bound is larger than their reduced cost.
        double scale = 0.0;
        for (int64_t e = 0; e < k; ++e)
            scale = at.box ? scale + (at.zu[e] + at.zv[e]) / at.cost[e] / k
                           : std::max(scale, std::fabs(at.w[e]) * at.cost[e]);
        count = 0;
        for (int64_t e = 0; e < k; ++e) {
            const double low = std::min(at.u[e], at.v[e]), high = std::max(at.u[e], at.v[e]);
            const double size = scale * at.cost[e];  // of a reduced cost, in linf of a part
            if (at.box ? low * size * at.cost[e] > std::max(at.zu[e], at.zv[e])
                       : high * at.cost[e] * at.cost[e] > size * std::min(at.zu[e], at.zv[e]))
                moving[count++] = e;
        }
        entries = count;
        count += at.box;  // and the entries at their bound, together
        if (count == 0 || count > m) return false;
        // As many rows, those whose multiplier is largest beside their slack.
        for (int64_t c = 0; c < m; ++c) {
            tight[c] = c;
            left[c] = p.free_sign[c] ? INF : at.lam[c] / at.s[c];
        }
        std::nth_element(tight, tight + (count - 1), tight + m, [this](int64_t one, int64_t other) {
            return left[one] > left[other] || (left[one] == left[other] && one < other);
        });
        // with an order of its own, else it is a symbol of the C++ library (libc++)
        std::sort(tight, tight + count, [](int64_t one, int64_t other) { return one < other; });
        // The hash FNV-1a of both stands for them.
        uint64_t pattern = 14695981039346656037u;
        for (int64_t i = 0; i < count; ++i) pattern = (pattern ^ tight[i]) * 1099511628211u;
        for (int64_t i = 0; i < entries; ++i)
            pattern = (pattern ^ (moving[i] + m)) * 1099511628211u;
        const bool again = (int64_t)pattern == at.pattern && at.pattern != at.tried;
        at.pattern = pattern;
        return again;
    }

    // The vertex with these rows and entries: B y = b and B^T lam = sign in l1; in linf one more
    // column holds the entries at their bound, whose common size is what is minimised.
    void vertex() {
        at.tried = at.pattern;
        double *B = (double *)std::malloc(sizeof(double) * (count + 1) * count);
        if (!B) return;
        int *order = (int *)(B + count * count);
        double *bound = ru, *w = rv, *sign = edge, *y = missed, *r = rs, *lam = ds;
        for (int64_t e = 0; e < k; ++e)
            bound[e] = at.box ? std::copysign(1.0 / at.cost[e], at.w[e]) : 0.0;
        for (int64_t j = 0; j < entries; ++j) {
            sign[j] = at.box ? 0.0 : std::copysign(at.cost[moving[j]], at.w[moving[j]]);
            bound[moving[j]] = 0.0;
        }
        if (at.box) sign[entries] = 1.0;
        basis(B, bound);
        if (lu(B, order)) {
            std::memset(y, 0, sizeof(double) * count);
            std::memset(lam, 0, sizeof(double) * m);
            // Two passes: the second takes up what the first leaves by rounding.
            for (int pass = 0;; ++pass) {
                for (int64_t e = 0; e < k; ++e) w[e] = at.box ? bound[e] * y[entries] : 0.0;
                for (int64_t j = 0; j < entries; ++j) w[moving[j]] = y[j];
                if (pass == 2) break;
                values(w, val);
                for (int64_t i = 0; i < count; ++i) r[i] = p.b[tight[i]] - val[tight[i]];
                lu_solve(B, order, r);
                axpy(y, 1.0, r, count);
                adjoint(lam, x);
                for (int64_t j = 0; j < entries; ++j) r[j] = sign[j] - x[moving[j]];
                if (at.box) r[entries] = sign[entries] - dot(bound, x, k);
                lu_solve_transposed(B, order, r);
                for (int64_t i = 0; i < count; ++i) lam[tight[i]] += r[i];
            }
            for (int64_t c = 0; c < m; ++c)
                if (!p.free_sign[c]) lam[c] = std::max(lam[c], 0.0);
            consider(w, lam);
        }
        std::free(B);
    }

    // The rows on the entries that move, and in linf on those that are held at their bound.
    void basis(double *B, const double *bound) {
        if (at.box) values(bound, val);
        int64_t sequence = 0;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t c = tight[i];
            while (p.offsets[sequence + 1] <= c) ++sequence;
            const double *d = p.D + c * p.dx, *z = p.Z + sequence * p.dz;
            for (int64_t j = 0; j < entries; ++j)
                B[i * count + j] = d[moving[j] / p.dz] * z[moving[j] % p.dz];
            if (at.box) B[i * count + entries] = val[c];
        }
    }

    // B with its factors in place of it, row by row; false where it is singular.
    bool lu(double *B, int *order) const {
        if (blas && count > OWN) {
            const int n = count;
            int failed = 0;
            blas->getrf(&n, &n, B, &n, order, &failed);
            return failed == 0;
        }
        for (int64_t i = 0; i < count; ++i) {
            int64_t best = i;
            for (int64_t q = i + 1; q < count; ++q)
                if (std::fabs(B[q * count + i]) > std::fabs(B[best * count + i])) best = q;
            order[i] = best;
            if (!(std::fabs(B[best * count + i]) > 1e-14)) return false;
            if (best != i)
                for (int64_t j = 0; j < count; ++j)
                    std::swap(B[i * count + j], B[best * count + j]);
            for (int64_t q = i + 1; q < count; ++q) {
                const double by = B[q * count + i] /= B[i * count + i];
                if (by != 0.0)
                    axpy(B + q * count + i + 1, -by, B + i * count + i + 1, count - i - 1);
            }
        }
        return true;
    }
    void lu_solve(const double *B, const int *order, double *r) const {
        if (blas && count > OWN) return lapack_solve("T", B, order, r);
        for (int64_t i = 0; i < count; ++i) {
            std::swap(r[i], r[order[i]]);
            r[i] -= dot(B + i * count, r, i);
        }
        for (int64_t i = count - 1; i >= 0; --i)
            r[i] = (r[i] - dot(B + i * count + i + 1, r + i + 1, count - i - 1)) / B[i * count + i];
    }
    void lu_solve_transposed(const double *B, const int *order, double *r) const {
        if (blas && count > OWN) return lapack_solve("N", B, order, r);
        for (int64_t i = 0; i < count; ++i) {
            r[i] /= B[i * count + i];
            axpy(r + i + 1, -r[i], B + i * count + i + 1, count - i - 1);
        }
        for (int64_t i = count - 1; i >= 0; --i) axpy(r, -r[i], B + i * count, i);
        for (int64_t i = count - 1; i >= 0; --i) std::swap(r[i], r[order[i]]);
    }
    void lapack_solve(const char *which, const double *B, const int *order, double *r) const {
        const int n = count, one = 1;
        int failed = 0;
        blas->getrs(which, &n, &one, B, &n, order, r, &n, &failed);
    }
};

// Where the interior points begin when nothing is known: rows of one size, multipliers of one; of
// equalities alone like their sides. In l1 no entry is cheaper than one there.
void begin(const Programme &p, Interior &at, double *x, double *moved) {
    const int64_t m = p.m, k = p.dx * p.dz;
    double sum = 0.0, largest = 0.0, mean = 0.0, highest = 0.0;
    for (int64_t c = 0; c < m; ++c) {
        at.lam[c] = p.free_sign[c] ? 0.0 : 1.0;
        sum += at.lam[c] * p.b[c];
        highest = std::max(highest, p.b[c]);
    }
    if (sum == 0.0)  // only equalities ask for anything
        for (int64_t c = 0; c < m; ++c) {
            if (p.free_sign[c]) at.lam[c] = p.b[c];
            sum += at.lam[c] * p.b[c];
        }
    std::memset(x, 0, sizeof(double) * k);
    adjoint(&p, 0, p.n, at.lam, moved, x);
    for (int64_t e = 0; e < k; ++e) {
        largest = std::max(largest, std::fabs(x[e]) / std::max(at.cost[e], 1.0));
        mean += std::fabs(x[e]) / at.cost[e] / k;
    }
    const double size = at.box ? 1.0 / std::max(sum, 1e-300) : 0.5 / std::max(largest, 1e-300);
    for (int64_t c = 0; c < m; ++c) {
        at.lam[c] *= size;
        at.s[c] = p.free_sign[c] ? 0.0 : at.box ? p.b[c] + 0.1 * highest : 1.0;
    }
    const double centre = mean * size + 1e-300;
    for (int64_t e = 0; e < k; ++e) {
        const double pull = x[e] * size;
        const double cost = at.box ? at.cost[e] : std::max(at.cost[e], 1.0);
        at.w[e] = 0.0;
        at.u[e] = at.v[e] = 1.0 / cost;
        at.zu[e] = at.box ? std::max(pull, 0.0) + centre * cost : cost - pull;
        at.zv[e] = at.box ? std::max(-pull, 0.0) + centre * cost : cost + pull;
    }
    at.tau = -1.0;
}

// Weights that meet the margins, b^T lam = |W|^2, and no multipliers where rows are not active:
// what interior points leave there is what their gap is made of.
void finish(const Programme &p, Interior &at, double *val, double *moved) {
    const int64_t m = p.m, k = p.dx * p.dz;
    values(&p, 0, p.n, at.best_w, moved, val);
    double ratio = INF, most = 0.0, top = 0.0, size = 0.0;
    for (int64_t c = 0; c < m; ++c) {
        if (p.b[c] > 0.0) ratio = std::min(ratio, val[c] / p.b[c]);
        most = std::max(most, std::fabs(at.best_lam[c]));
    }
    for (int64_t c = 0; c < m; ++c) {
        double &lam = at.best_lam[c];
        if (!p.free_sign[c] && val[c] / ratio - p.b[c] > APART && lam < APART * most) lam = 0.0;
        top += lam * p.b[c];
    }
    for (int64_t e = 0; e < k; ++e) {
        at.best_w[e] /= ratio;
        const double entry = std::fabs(at.best_w[e]) * at.cost[e];
        size = at.box ? std::max(size, entry) : size + entry;
    }
    for (int64_t c = 0; c < m; ++c) at.best_lam[c] *= size / top * size;
}

// Rows, queries and right-hand sides of programme g times powers of two that bring them near one.
// The exponents of the rows, and of the weights; false where they leave float64.
bool near_one(const Programme &all, Programme &p, int64_t *exponent, int64_t *of_query, double *D,
              double *Z, double *b, int64_t &weights) {
    row_exponents(all.D, p.m, p.dx, exponent);
    row_exponents(all.Z, p.n, p.dz, of_query);
    weights = std::numeric_limits<int64_t>::min();
    for (int64_t i = 0; i < p.n; ++i)
        for (int64_t c = p.offsets[i]; c < p.offsets[i + 1]; ++c) {
            const double down = std::ldexp(1.0, -exponent[c]);
            if (std::llabs(exponent[c]) > FARTHEST || std::llabs(of_query[i]) > FARTHEST)
                return false;
            for (int64_t a = 0; a < p.dx; ++a) D[c * p.dx + a] = all.D[c * p.dx + a] * down;
            exponent[c] += of_query[i];
            if (all.b[c] > 0.0) {
                int power;
                std::frexp(all.b[c], &power);
                weights = std::max<int64_t>(weights, power - exponent[c]);
            }
        }
    if (weights < -2 * FARTHEST || weights > 2 * FARTHEST) return false;
    for (int64_t i = 0; i < p.n; ++i) {
        const double down = std::ldexp(1.0, -of_query[i]);
        for (int64_t e = 0; e < p.dz; ++e) Z[i * p.dz + e] = all.Z[i * p.dz + e] * down;
    }
    for (int64_t c = 0; c < p.m; ++c) b[c] = std::ldexp(all.b[c], -exponent[c] - weights);
    p.D = D, p.Z = Z, p.b = b;
    return true;
}

// The numbers that a state takes, which begin at `memory`.
void place(Interior &at, double *memory, int64_t m, int64_t k) {
    at.lam = take(memory, m), at.s = take(memory, m), at.best_lam = take(memory, m);
    for (double **array : {&at.w, &at.u, &at.v, &at.zu, &at.zv, &at.best_w})
        *array = take(memory, k);
}

}  // namespace

// From the state that is there to a gap of `enough`, in at most so many iterations; false where
// there is no memory.
PUBLIC int64_t interior(const Programme *p, Interior *at, const Blas *blas, double enough,
                        int64_t most) {
    double *memory = (double *)std::malloc(sizeof(double) * Method::room(*p));
    if (!memory) return 0;
    Method(*p, *at, blas, memory).run(enough, most);
    std::free(memory);
    return 1;
}

// The state in which nothing is known.
PUBLIC int64_t interior_begin(const Programme *p, Interior *at) {
    const int64_t k = p->dx * p->dz;
    double *memory = (double *)std::malloc(sizeof(double) * (k + p->dx));
    if (!memory) return 0;
    begin(*p, *at, memory, memory + k);
    std::free(memory);
    return 1;
}

// Programmes `first` to before `last` of many that lie end to end, the sequences of the g-th from
// instances[g] on: W and lam in the units of the caller, the gap of each (infinite where nothing
// was found) and the systems solved. False where there is no memory.
PUBLIC int64_t interior_many(const Programme *all, const int64_t *instances, int64_t first,
                             int64_t last, int64_t box, double enough, double *W, double *lam,
                             double *gap, int64_t *systems) {
    const int64_t dx = all->dx, dz = all->dz, k = dx * dz;
    int64_t m = 0, n = 0;
    for (int64_t g = first; g < last; ++g) {
        m = std::max(m, all->offsets[instances[g + 1]] - all->offsets[instances[g]]);
        n = std::max(n, instances[g + 1] - instances[g]);
    }
    Programme largest = *all;
    largest.m = m, largest.n = n;
    const int64_t numbers = Method::room(largest) + 3 * m + 7 * k + m * dx + n * dz + m;
    double *memory = (double *)std::malloc(sizeof(double) * numbers);
    int64_t *integers = (int64_t *)std::malloc(sizeof(int64_t) * (m + 2 * n + 1));
    if (!memory || !integers) {
        std::free(memory);
        std::free(integers);
        return 0;
    }
    double *next = memory + Method::room(largest), *state = next;
    next += 3 * m + 6 * k;
    double *D = take(next, m * dx), *Z = take(next, n * dz), *b = take(next, m);
    double *cost = take(next, k);
    std::fill(cost, cost + k, 1.0);
    int64_t *exponent = integers, *of_query = exponent + m, *offsets = of_query + n;
    for (int64_t g = first; g < last; ++g) {
        const int64_t begins = instances[g], row = all->offsets[begins];
        Programme callers = *all, p = *all;
        p.n = instances[g + 1] - begins;
        for (int64_t i = 0; i <= p.n; ++i) offsets[i] = all->offsets[begins + i] - row;
        p.m = offsets[p.n];
        p.offsets = offsets;
        p.free_sign = all->free_sign + row;
        callers.D += row * dx, callers.Z += begins * dz, callers.b += row;
        gap[g] = INF;
        systems[g] = 0;
        int64_t weights = 0;
        if (!near_one(callers, p, exponent, of_query, D, Z, b, weights)) continue;
        Interior at = {};
        at.box = box;
        at.patience = IDLE;
        at.gap = at.seconds = INF;
        at.cost = cost;
        place(at, state, p.m, k);
        Method method(p, at, nullptr, memory);
        begin(p, at, method.x, method.moved);
        method.blind = GLANCE;
        method.run(enough, MOST);
        systems[g] = at.systems;
        if (!(at.gap < 1.0)) continue;
        finish(p, at, method.val, method.moved);
        gap[g] = at.gap;
        for (int64_t e = 0; e < k; ++e) W[g * k + e] = std::ldexp(at.best_w[e], weights);
        for (int64_t c = 0; c < p.m; ++c)
            lam[row + c] = std::ldexp(at.best_lam[c], weights - exponent[c]);
    }
    std::free(memory);
    std::free(integers);
    return 1;
}
