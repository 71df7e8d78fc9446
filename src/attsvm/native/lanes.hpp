// Sums in explicit lanes: the same order of additions in every process, and no fast-math.
#pragma once
#include <cstdint>
#include <limits>

#define RESTRICT __restrict

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();

// The next numbers of a room that the caller hands over.
inline double *take(double *&room, int64_t count) {
    double *numbers = room;
    room += count;
    return numbers;
}

#if defined(__AVX__)
constexpr int WIDE = 4;  // numbers in a register
#else
constexpr int WIDE = 2;
#endif
typedef double Lane __attribute__((vector_size(8 * WIDE), aligned(8), may_alias));
constexpr int PARTS = 8 / WIDE;  // registers for eight numbers

inline Lane at(const double *p) { return *(const Lane *)p; }
inline Lane &at(double *p) { return *(Lane *)p; }

inline double total(Lane s) {
#if defined(__AVX__)
    return (s[0] + s[2]) + (s[1] + s[3]);
#else
    return s[0] + s[1];
#endif
}

// sum_k a_k b_k
inline double dot(const double *RESTRICT a, const double *RESTRICT b, int64_t n) {
    Lane sums[PARTS] = {};
    int64_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int q = 0; q < PARTS; ++q) sums[q] += at(a + k + q * WIDE) * at(b + k + q * WIDE);
    if (k + 4 <= n) {
        for (int q = 0; q < PARTS / 2; ++q) sums[q] += at(a + k + q * WIDE) * at(b + k + q * WIDE);
        k += 4;
    }
    for (int q = 1; q < PARTS; ++q) sums[0] += sums[q];
    double sum = total(sums[0]);
    for (; k < n; ++k) sum += a[k] * b[k];
    return sum;
}

// sum_k a_k c_k and sum_k b_k c_k
inline void dot_two(const double *RESTRICT a, const double *RESTRICT b, const double *RESTRICT c,
                    int64_t n, double &first, double &second) {
    Lane s[PARTS] = {}, t[PARTS] = {};
    int64_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int q = 0; q < PARTS; ++q) {
            const Lane shared = at(c + k + q * WIDE);
            s[q] += at(a + k + q * WIDE) * shared;
            t[q] += at(b + k + q * WIDE) * shared;
        }
    if (k + 4 <= n) {
        for (int q = 0; q < PARTS / 2; ++q) {
            const Lane shared = at(c + k + q * WIDE);
            s[q] += at(a + k + q * WIDE) * shared;
            t[q] += at(b + k + q * WIDE) * shared;
        }
        k += 4;
    }
    for (int q = 1; q < PARTS; ++q) {
        s[0] += s[q];
        t[0] += t[q];
    }
    first = total(s[0]);
    second = total(t[0]);
    for (; k < n; ++k) {
        first += a[k] * c[k];
        second += b[k] * c[k];
    }
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif

// The totals of four registers, each by the same additions.
inline void totals(Lane a, Lane b, Lane c, Lane d, double *out) {
#if defined(SHUFFLES) && defined(__AVX__)
    const Lane low = __builtin_shufflevector(a, b, 0, 4, 2, 6) +
                     __builtin_shufflevector(a, b, 1, 5, 3, 7);
    const Lane high = __builtin_shufflevector(c, d, 0, 4, 2, 6) +
                      __builtin_shufflevector(c, d, 1, 5, 3, 7);
    at(out) = __builtin_shufflevector(low, high, 0, 1, 4, 5) +
              __builtin_shufflevector(low, high, 2, 3, 6, 7);
#else
    out[0] = total(a), out[1] = total(b), out[2] = total(c), out[3] = total(d);
#endif
}

// out_j = sum_k x_jk c_k for m rows of x, in the same order for every row.
inline void dot_rows(const double *RESTRICT x, const double *RESTRICT c, int64_t m, int64_t n,
                     double *RESTRICT out) {
    double rest[4];
    for (int64_t j = 0; j < m; j += 4) {
        const int64_t last = m - 1 - j;  // rows past the end repeat the last
        const double *p = x + j * n, *q = p + (last < 1 ? 0 : 1) * n,
                     *r = p + (last < 2 ? last : 2) * n, *s = p + (last < 3 ? last : 3) * n;
        Lane a = {}, b = {}, e = {}, f = {};
        int64_t k = 0;
        for (; k + WIDE <= n; k += WIDE) {
            const Lane shared = at(c + k);
            a += at(p + k) * shared, b += at(q + k) * shared;
            e += at(r + k) * shared, f += at(s + k) * shared;
        }
        totals(a, b, e, f, rest);
        for (; k < n; ++k) {
            rest[0] += p[k] * c[k], rest[1] += q[k] * c[k];
            rest[2] += r[k] * c[k], rest[3] += s[k] * c[k];
        }
        for (int64_t i = 0; i < 4 && i <= last; ++i) out[j + i] = rest[i];
    }
}

// y += w x
inline void axpy(double *RESTRICT y, double w, const double *RESTRICT x, int64_t n) {
    int64_t k = 0;
    for (; k + WIDE <= n; k += WIDE) at(y + k) += w * at(x + k);
    for (; k < n; ++k) y[k] += w * x[k];
}

// y += sum_j w_j x_j over m rows of x
inline void add_rows(double *RESTRICT y, const double *RESTRICT w, const double *RESTRICT x,
                     int64_t m, int64_t n) {
    int64_t j = 0;
    for (; j + 4 <= m; j += 4) {
        const double *a = x + j * n, *b = a + n, *c = b + n, *d = c + n;
        const double p = w[j], q = w[j + 1], r = w[j + 2], s = w[j + 3];
        int64_t k = 0;
        for (; k + WIDE <= n; k += WIDE)
            at(y + k) += (p * at(a + k) + q * at(b + k)) + (r * at(c + k) + s * at(d + k));
        for (; k < n; ++k) y[k] += (p * a[k] + q * b[k]) + (r * c[k] + s * d[k]);
    }
    for (; j < m; ++j) axpy(y, w[j], x + j * n, n);
}

}  // namespace
