// Steps of optimisers on tensors: the mirror step y <- keep y - lr g, w = sp(y, r), the normalised
// step w <- keep w - lr m / |m|, and the step along signs w <- keep w - lr sign(m). A power
// sp(y, r) = sign(y) |y|^r has its exponent as an integer and a fraction in [0, 1), so that neither
// loses digits to the other.
#include <algorithm>

#include "attsvm.h"
#include "vector_math.hpp"

PUBLIC void signed_powers(const double *y, double *out, int64_t n, double integer, double fraction);

namespace {

constexpr int64_t BLOCK = 2048;  // numbers: three blocks of floats stay in the first cache

inline int32_t bits_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float of_bits(int32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Whether a float is zero, denormal, infinite or NaN.
inline int32_t is_special(float x) {
    return (uint32_t)(bits_of(std::fabs(x)) - 0x00800000) >= 0x7F000000u;
}

// size^r of a normal float, 0 < r < 1, r = high + low, where products of high with an exponent are
// exact: log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1] and (2^z - 1) / z on [-.55, .55] by
// polynomials through Chebyshev's points.
inline float root_one(float size, float r, float high, float low) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23
    const int32_t bits = bits_of(size);
    const int32_t above = (bits - 0x3F3504F3) & ~0x7FFFFF;  // from sqrt(1/2) on
    const float f = of_bits(bits - above) - 1.0f;
    const float exponent = (float)(above >> 23);
    float t = 0.12310968f;
    t = t * f - 0.20586188f;
    t = t * f + 0.21607822f;
    t = t * f - 0.23916988f;
    t = t * f + 0.28790325f;
    t = t * f - 0.36069328f;
    t = t * f + 0.48091075f;
    t = t * f - 0.72134745f;
    t = t * f + 1.442695f;
    const float v = (r * f) * t;
    const float shifted = (exponent * high + v) + ROUND;
    const float z = (exponent * high - (shifted - ROUND)) + (exponent * low + v);
    float e = 0.00015463604f;
    e = e * z + 0.0013402925f;
    e = e * z + 0.009618061f;
    e = e * z + 0.05550332f;
    e = e * z + 0.2402265f;
    e = e * z + 0.6931472f;
    e = e * z + 1.0f;
    return of_bits((int32_t)((uint32_t)bits_of(e) + ((uint32_t)bits_of(shifted) << 23)));
}

// The cube root of a normal float: an inverse cube root off the bits, two Newton steps, and a last
// one on the root itself.
inline float cube_root(float size) {
    constexpr float THIRD = 1.0f / 3.0f, FOUR_THIRDS = 4.0f / 3.0f;
    // a third of the bits by way of floats, whose division by three takes a tenth of the time
    float inverse = of_bits(0x54A21D2A - (int32_t)((float)bits_of(size) * THIRD));
    inverse = inverse * (FOUR_THIRDS - (THIRD * size) * inverse * (inverse * inverse));
    inverse = inverse * (FOUR_THIRDS - (THIRD * size) * inverse * (inverse * inverse));
    const float square = inverse * inverse, root = size * square;
    return root - (root * (root * root) - size) * (THIRD * square);
}

// out *= size^integer by repeated squaring; `size` is used up
inline void raise(double *RESTRICT size, double *RESTRICT out, int64_t n, int64_t integer) {
    for (; integer > 0; integer >>= 1) {
        if (integer & 1)
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] *= size[i];
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) size[i] *= size[i];
    }
}

// Any block, by way of doubles.
void wide_powers(const float *RESTRICT y, float *RESTRICT w, int64_t n, int64_t integer,
                 double fraction) {
    double size[BLOCK], power[BLOCK];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) size[i] = std::fabs((double)y[i]);
    if (fraction > 0.0)
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) power[i] = ::root_one(size[i], fraction);
    else
        std::fill(power, power + n, 1.0);
    raise(size, power, n, integer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) w[i] = std::copysign((float)power[i], y[i]);
}

// y <- y - step g and w = power(y) in one loop; how many numbers of y are special
template <class Power>
inline int32_t sweep(const float *RESTRICT g, float *RESTRICT y, float *RESTRICT w, int64_t n,
                     float step, Power power) {
    int32_t special = 0;
#pragma omp simd reduction(+ : special)
    for (int64_t i = 0; i < n; ++i) {
        const float moved = y[i] - step * g[i];
        y[i] = moved;
        w[i] = power(moved);
        special += is_special(moved);
    }
    return special;
}

// y <- y - step g and w = sp(y, integer + fraction) of a block, within two units in the last place.
void move_block(const float *RESTRICT g, float *RESTRICT y, float *RESTRICT w, int64_t n,
                float step, int64_t integer, double fraction) {
#define PLAIN(value)                                          \
    {                                                         \
        sweep(g, y, w, n, step, [](float x) { return value; }); \
        return;                                               \
    }
    if (fraction == 0.0) {
        if (integer == 1) PLAIN(x);
        if (integer == 2) PLAIN(x * std::fabs(x));
        if (integer == 3) PLAIN(x * x * x);
        if (integer == 4) PLAIN(std::copysign((x * x) * (x * x), x));
        if (integer == 10) {
            sweep(g, y, w, n, step, [](float x) {
                const double square = (double)x * x, fifth = square * square * x;
                return (float)(fifth * std::fabs(fifth));
            });
            return;
        }
        sweep(g, y, w, n, step, [](float x) { return x; });
        return wide_powers(y, w, n, integer, fraction);
    }
    if (integer == 0) {
        if (fraction == 0.5) PLAIN(std::copysign(std::sqrt(std::fabs(x)), x));
        if (fraction == 0.25) PLAIN(std::copysign(std::sqrt(std::sqrt(std::fabs(x))), x));
    }
#undef PLAIN
    const bool cube = std::fabs(fraction - 1.0 / 3.0) < 1e-15;
    const double leading = std::floor(fraction * 4096.0 + 0.5) / 4096.0;
    const float r = (float)fraction, high = (float)leading, low = (float)(fraction - leading);
    const auto root = [=](float x) { return root_one(std::fabs(x), r, high, low); };
    const auto third = [](float x) { return cube_root(std::fabs(x)); };
    int32_t special = 0;
    if (integer == 1) {
        special = cube ? sweep(g, y, w, n, step, [=](float x) { return third(x) * x; })
                       : sweep(g, y, w, n, step, [=](float x) { return root(x) * x; });
    } else {
        const auto signed_root = [=](float x) { return std::copysign(root(x), x); };
        const auto signed_third = [=](float x) { return std::copysign(third(x), x); };
        special = cube ? sweep(g, y, w, n, step, signed_third)
                       : sweep(g, y, w, n, step, signed_root);
    }
    if (special > 0) return wide_powers(y, w, n, integer, fraction);
    if (integer <= 1) return;
    // in doubles, so that only the last rounding is one of floats
    double size[BLOCK], power[BLOCK];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        size[i] = std::fabs((double)y[i]);
        power[i] = w[i];
    }
    raise(size, power, n, integer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) w[i] = (float)power[i];
}

// The largest number, or one where all are zero or one is none.
template <class T> double scale_of(const T *m, int64_t n) {
    double largest = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const double size = std::fabs((double)m[i]);
        if (size != size) return 1.0;
        largest = std::max(largest, size);
    }
    return largest > 0.0 ? largest : 1.0;
}

// sum_i m_i^2, in sixteen sums
template <class T> double squares(const T *m, int64_t n) {
    double sums[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int q = 0; q < 16; ++q) sums[q] += (double)m[i + q] * (double)m[i + q];
    for (int64_t q = 0; i < n; ++i, ++q) sums[q] += (double)m[i] * (double)m[i];
    for (int half = 8; half > 0; half /= 2)
        for (int q = 0; q < half; ++q) sums[q] += sums[q + half];
    return sums[0];
}

template <class T>
void normalized_step(T *RESTRICT w, const T *RESTRICT m, int64_t matrices, int64_t size,
                     double keep, double lr) {
    for (int64_t k = 0; k < matrices; ++k, w += size, m += size) {
        double square = squares(m, size);
        if (square > 1e-270 && square < INFINITY) {
            const double factor = lr / std::sqrt(square);
#pragma omp simd
            for (int64_t i = 0; i < size; ++i)
                w[i] = (T)(keep * (double)w[i] - factor * (double)m[i]);
            continue;
        }
        const double scale = scale_of(m, size);  // squares may have been lost
        square = 0.0;
        for (int64_t i = 0; i < size; ++i) square += (m[i] / scale) * (m[i] / scale);
        const double factor = square == 0.0 ? lr : lr / std::sqrt(square);  // NaN stays
        for (int64_t i = 0; i < size; ++i)
            w[i] = (T)(keep * (double)w[i] - factor * ((double)m[i] / scale));
    }
}

// What is not finite makes NaN.
template <class T>
void sign_step(T *RESTRICT w, const T *RESTRICT m, int64_t n, T keep, T lr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T sign = (T)(m[i] > 0) - (T)(m[i] < 0) + m[i] * (T)0;
        w[i] = keep * w[i] - lr * sign;
    }
}

}  // namespace

// y <- keep y - lr g and w = sp(y, integer + fraction), n numbers each
PUBLIC void mirror_step_f32(const float *RESTRICT g, float *RESTRICT y, float *RESTRICT w,
                            int64_t n, double keep, double lr, double integer, double fraction) {
    const float factor = (float)keep, step = (float)lr;
    for (int64_t first = 0; first < n; first += BLOCK, g += BLOCK, y += BLOCK, w += BLOCK) {
        const int64_t count = std::min(BLOCK, n - first);
        if (factor != 1.0f)  // a loop of its own, so that the product rounds as in torch
#pragma omp simd
            for (int64_t i = 0; i < count; ++i) y[i] *= factor;
        move_block(g, y, w, count, step, (int64_t)integer, fraction);
    }
}

PUBLIC void mirror_step_f64(const double *RESTRICT g, double *RESTRICT y, double *RESTRICT w,
                            int64_t n, double keep, double lr, double integer, double fraction) {
    for (int64_t first = 0; first < n; first += BLOCK, g += BLOCK, y += BLOCK, w += BLOCK) {
        const int64_t count = std::min(BLOCK, n - first);
        if (keep != 1.0)
#pragma omp simd
            for (int64_t i = 0; i < count; ++i) y[i] *= keep;
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) y[i] -= lr * g[i];
        signed_powers(y, w, count, integer, fraction);
    }
}

// w <- keep w - lr m / |m| for each of the matrices of so many numbers; zero moves nothing, and a
// matrix that is not finite makes NaN. In doubles, rounded once.
PUBLIC void normalized_step_f32(float *w, const float *m, int64_t matrices, int64_t size,
                                double keep, double lr) {
    normalized_step(w, m, matrices, size, keep, lr);
}

PUBLIC void normalized_step_f64(double *w, const double *m, int64_t matrices, int64_t size,
                                double keep, double lr) {
    normalized_step(w, m, matrices, size, keep, lr);
}

// w <- keep w - lr sign(m)
PUBLIC void sign_step_f32(float *w, const float *m, int64_t matrices, int64_t size, double keep,
                          double lr) {
    sign_step(w, m, matrices * size, (float)keep, (float)lr);
}

PUBLIC void sign_step_f64(double *w, const double *m, int64_t matrices, int64_t size, double keep,
                          double lr) {
    sign_step(w, m, matrices * size, keep, lr);
}
