// Cholesky factors of a few hundred rows, row by row; the diagonal holds its reciprocals.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.hpp"

namespace {

// What is left of a row's square below which it is taken to depend on the rows before it.
constexpr double DEPENDENT = 1e-13;

// x <- L^-1 x
inline void forward(const double *factor, int64_t stride, int64_t count, double *RESTRICT x) {
    for (int64_t i = 0; i < count; ++i) {
        const double *row = factor + i * stride;
        x[i] = (x[i] - dot(row, x, i)) * row[i];
    }
}
// x <- L^-T x
inline void backward(const double *factor, int64_t stride, int64_t count, double *RESTRICT x) {
    for (int64_t i = count - 1; i >= 0; --i) {
        const double *row = factor + i * stride;
        x[i] *= row[i];
        axpy(x, -x[i], row, i);
    }
}
// x <- (L L^T)^-1 x
inline void substitute(const double *factor, int64_t stride, int64_t count, double *RESTRICT x) {
    forward(factor, stride, count, x);
    backward(factor, stride, count, x);
}

// Row `count` of the factor from L^-1 g, which it begins with, and the new diagonal entry; false
// where the row depends on the others.
inline bool append(double *factor, int64_t stride, int64_t count, const double *half,
                   double diagonal) {
    double *row = factor + count * stride;
    const double left = diagonal - dot(half, half, count);
    if (!(left > DEPENDENT * diagonal)) return false;
    std::memcpy(row, half, sizeof(double) * count);
    row[count] = 1.0 / std::sqrt(left);
    return true;
}

// The factor without row `gone`: the rows below move up, and rotations make it triangular again.
inline void remove(double *factor, int64_t stride, int64_t count, int64_t gone) {
    for (int64_t i = gone; i < count - 1; ++i) {
        double *row = factor + i * stride;
        std::memcpy(row, row + stride, sizeof(double) * (i + 2));
        row[i + 1] = 1.0 / row[i + 1];
    }
    for (int64_t i = gone; i < count - 1; ++i) {
        double *row = factor + i * stride;
        const double a = row[i], b = row[i + 1], length = std::sqrt(a * a + b * b);
        const double cosine = a / length, sine = b / length;
        row[i] = 1.0 / length;
        for (int64_t q = i + 1; q < count - 1; ++q) {
            double *other = factor + q * stride;
            const double x = other[i], y = other[i + 1];
            other[i] = cosine * x + sine * y;
            other[i + 1] = cosine * y - sine * x;
        }
    }
}

}  // namespace
