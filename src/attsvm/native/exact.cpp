// Sums with twice the digits of a double, which proofs need. This file is compiled without fusing
// products into sums: every line below counts on the rounding of each operation.
//
// A number is high + low, kept by the error-free sum of Knuth and the error-free product of Dekker
// and Veltkamp (T. J. Dekker, A floating-point technique for extending the available precision,
// 1971), or of one fused product where the processor has it. A sum is wrong by at most 2^-98 of the
// sum of the sizes of its terms, up to a million terms. Entries are zero or between 2^-400 and
// 2^400 in size; what is smaller loses digits, and no more than 2^-900.
#include "attsvm.h"

#include <cmath>
#include <cstring>

#define RESTRICT __restrict

namespace {

struct Twice {
    double high, low;
};

inline Twice sum(double a, double b) {
    const double s = a + b, t = s - a;
    return {s, (a - (s - t)) + (b - t)};
}

inline Twice product(double a, double b) {
    const double p = a * b;
#if defined(__FMA__) || defined(__aarch64__)
    return {p, __builtin_fma(a, b, -p)};
#else
    constexpr double SPLIT = 134217729.0;  // 2^27 + 1
    double t = SPLIT * a;
    const double a_high = t - (t - a), a_low = a - a_high;
    t = SPLIT * b;
    const double b_high = t - (t - b), b_low = b - b_high;
    return {p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low};
#endif
}

inline Twice times(Twice x, double factor) {
    const Twice p = product(x.high, factor);
    const double e = p.low + x.low * factor, s = p.high + e;
    return {s, e - (s - p.high)};
}

inline Twice plus(Twice x, Twice y) {
    const Twice s = sum(x.high, y.high), t = sum(x.low, y.low);
    double e = s.low + t.high;
    const double u = s.high + e;
    e = (e - (u - s.high)) + t.low;
    const double v = u + e;
    return {v, e - (v - u)};
}

// out = A x for `rows` rows of `d` numbers, four at a time, whose sums do not wait for each other.
void multiplied(const double *RESTRICT A, int64_t rows, int64_t d, const double *RESTRICT high,
                const double *RESTRICT low, double *RESTRICT out_high, double *RESTRICT out_low) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        Twice s[4] = {};
        for (int64_t k = 0; k < d; ++k)
            for (int q = 0; q < 4; ++q)
                s[q] = plus(s[q], times({high[k], low[k]}, A[(r + q) * d + k]));
        for (int q = 0; q < 4; ++q) {
            out_high[r + q] = s[q].high;
            out_low[r + q] = s[q].low;
        }
    }
    for (; r < rows; ++r) {
        Twice s = {0.0, 0.0};
        for (int64_t k = 0; k < d; ++k) s = plus(s, times({high[k], low[k]}, A[r * d + k]));
        out_high[r] = s.high;
        out_low[r] = s.low;
    }
}

}  // namespace

// <a_c, W> as high_c + low_c; `work` holds dz + 2 dx numbers.
PUBLIC void exact_values(const double *D, const double *Z, const int64_t *offsets, int64_t n,
                         int64_t dx, int64_t dz, const double *W, double *work, double *high,
                         double *low) {
    double *zero = work, *moved = work + dz, *after = moved + dx;
    std::memset(zero, 0, sizeof(double) * dz);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t first = offsets[i], count = offsets[i + 1] - first;
        if (count == 0) continue;
        multiplied(W, dx, dz, Z + i * dz, zero, moved, after);
        multiplied(D + first * dx, count, dx, moved, after, high + first, low + first);
    }
}

// sum_c lambda_c a_c as high + low, and the sum of the sizes of its terms; `work` holds 3 dx
// numbers.
PUBLIC void exact_adjoint(const double *D, const double *Z, const int64_t *offsets, int64_t n,
                          int64_t dx, int64_t dz, const double *lam, double *work, double *high,
                          double *low, double *size) {
    double *RESTRICT pulled = work, *RESTRICT after = work + dx, *RESTRICT total = work + 2 * dx;
    const size_t room = sizeof(double) * dx * dz;
    std::memset(high, 0, room), std::memset(low, 0, room), std::memset(size, 0, room);
    for (int64_t i = 0; i < n; ++i) {
        bool any = false;
        std::memset(work, 0, sizeof(double) * 3 * dx);
        for (int64_t c = offsets[i]; c < offsets[i + 1]; ++c) {
            if (lam[c] == 0.0) continue;
            any = true;
            const double *RESTRICT row = D + c * dx;
            for (int64_t a = 0; a < dx; ++a) {
                const Twice p = product(lam[c], row[a]);
                const Twice s = plus({pulled[a], after[a]}, p);
                pulled[a] = s.high;
                after[a] = s.low;
                total[a] += std::fabs(p.high);
            }
        }
        if (!any) continue;
        const double *RESTRICT z = Z + i * dz;
        for (int64_t a = 0; a < dx; ++a) {
            double *RESTRICT h = high + a * dz, *RESTRICT l = low + a * dz;
            double *RESTRICT t = size + a * dz;
            const Twice x = {pulled[a], after[a]};
            for (int64_t k = 0; k < dz; ++k) {
                const Twice s = plus({h[k], l[k]}, times(x, z[k]));
                h[k] = s.high;
                l[k] = s.low;
                t[k] += total[a] * std::fabs(z[k]);
            }
        }
    }
}

// x . y as out[0] + out[1].
PUBLIC void exact_dot(const double *x, const double *y, int64_t m, double *out) {
    Twice s = {0.0, 0.0};
    for (int64_t c = 0; c < m; ++c) s = plus(s, product(x[c], y[c]));
    out[0] = s.high;
    out[1] = s.low;
}
