// Exponentials and powers as loops that a compiler turns into vector instructions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.hpp"

namespace {

constexpr double LN2 = 0.6931471805599453;
constexpr double ROUNDER = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number

inline int64_t bits_of(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline double of_bits(int64_t bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// exp(r) for |r| <= ln 2 / 2 by Taylor's polynomial.
inline double exp_near(double r) {
    double q = 1.0 / 6227020800.0;
    q = q * r + 1.0 / 479001600.0;
    q = q * r + 1.0 / 39916800.0;
    q = q * r + 1.0 / 3628800.0;
    q = q * r + 1.0 / 362880.0;
    q = q * r + 1.0 / 40320.0;
    q = q * r + 1.0 / 5040.0;
    q = q * r + 1.0 / 720.0;
    q = q * r + 1.0 / 120.0;
    q = q * r + 1.0 / 24.0;
    q = q * r + 1.0 / 6.0;
    q = q * r + 0.5;
    return 1.0 + (r + r * r * q);
}

// exp(x) for x <= 0 to about one unit in the last place, 0 where x < -708: x = k ln 2 + r with
// ln 2 in two parts.
inline double exp_one(double x) {
    const double y = x > -708.0 ? x : -708.0;
    const double shifted = y * 1.4426950408889634 + ROUNDER;
    const double k = shifted - ROUNDER;
    const double r = (y - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    const double power = of_bits((int64_t)((uint64_t)(bits_of(shifted) + 1023) << 52));
    return x > -708.0 ? power * exp_near(r) : 0.0;
}

inline void exp_into(const double *RESTRICT x, double *RESTRICT out, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) out[j] = exp_one(x[j]);
}

// The upper half of a number: products of two such are exact.
inline double upper(double x) { return of_bits(bits_of(x) & ~0x7FFFFFFLL); }

// size^r for size >= 0 and 0 < r < 1, to about one unit in the last place. With size = 2^e m,
// m in [sqrt(1/2), sqrt(2)), and t = (m - 1) / (m + 1), log2 m = 2 / ln 2 (t + t^3/3 + ...) is
// kept in two parts, and so are t and the product with r.
inline double root_one(double size, double r) {
    constexpr double C = 2.8853900817779268;  // 2 / ln 2, and in two parts
    constexpr double C_HIGH = 0x1.715476p+1, C_LOW = 0x1.4ae0bf85ddf44p-25;
    const bool tiny = size < 2.2250738585072014e-308;
    const double x = tiny ? size * 18014398509481984.0 : size;
    const int64_t bits = bits_of(x);
    const int64_t exponent =
        (int64_t)((uint64_t)(bits - 0x3FE6A09E667F3BCDLL + (1023LL << 52)) >> 52);
    const double m = of_bits(bits - (int64_t)((uint64_t)(exponent - 1023) << 52));
    // a whole number as a double, without a conversion of 64 bits
    const double e = of_bits(exponent | 0x4330000000000000LL) - 4503599627370496.0 -
                     (tiny ? 1077.0 : 1023.0);
    const double f = m - 1.0, d = m + 1.0, d_rest = m - (d - 1.0), d_high = upper(d);
    const double inverse = 1.0 / d, t = f * inverse, t_high = upper(t);
    const double t_low =
        (((f - t_high * d_high) - t_high * (d - d_high)) - t_high * d_rest) * inverse;
    const double u = t * t;
    double p = 1.0 / 23.0;
    p = p * u + 1.0 / 21.0;
    p = p * u + 1.0 / 19.0;
    p = p * u + 1.0 / 17.0;
    p = p * u + 1.0 / 15.0;
    p = p * u + 1.0 / 13.0;
    p = p * u + 1.0 / 11.0;
    p = p * u + 1.0 / 9.0;
    p = p * u + 1.0 / 7.0;
    p = p * u + 1.0 / 5.0;
    p = p * u + 1.0 / 3.0;
    const double head = C_HIGH * t_high;  // exact
    const double tail = (C_HIGH * t_low + C_LOW * t) + C * t * u * p;
    const double log = head + tail, log_high = upper(log);
    const double log_low = (log - log_high) + (tail - (log - head));
    const double r_high = upper(r), r_low = r - r_high;
    const double whole = r_high * e, part = r_high * log_high;  // exact
    const double rest = r_low * e + (r_low * log + r_high * log_low);
    const double shifted = (whole + part) + ROUNDER;
    const double k = shifted - ROUNDER;
    const double g = ((whole - k) + part) + rest;
    const bool low = k < -1000.0;  // where 2^k may be no normal number
    const int64_t scale = bits_of(shifted + (low ? 54.0 : 0.0)) + 1023;
    const double power = of_bits((int64_t)((uint64_t)scale << 52)) * exp_near(g * LN2);
    const double root = power * (low ? 5.551115123125783e-17 : 1.0);
    return size > 0.0 && size < INFINITY ? root : size;
}

}  // namespace
