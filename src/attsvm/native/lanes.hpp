// Sums in explicit lanes: the same order of additions in every process, and no fast-math.
#pragma once
#include <cstdint>
#include <limits>

#define RESTRICT __restrict

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();

// The next numbers of a room that the caller hands over.
inline double *take(double *&room, int64_t count) {
    double *found = room;
    room += count;
    return found;
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

// y += w x
inline void axpy(double *RESTRICT y, double w, const double *RESTRICT x, int64_t n) {
    int64_t k = 0;
    for (; k + WIDE <= n; k += WIDE) at(y + k) += w * at(x + k);
    for (; k < n; ++k) y[k] += w * x[k];
}

}  // namespace
