// Proximal maps and lengths of gauges of vectors, and of the matrices that they measure.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attsvm.h"
#include "lanes.hpp"

namespace {

constexpr int64_t LARGEST_ROTATED = 64;
constexpr int64_t LONGEST_KEPT = 64;  // products of rotations, whose rounding adds up

// ||s||_p of non-negative numbers; divided by the largest before they are raised to a power.
inline double length(const double *s, int64_t k, double p) {
    double largest = 0.0, sum = 0.0;
    for (int64_t i = 0; i < k; ++i) largest = std::max(largest, s[i]);
    if (std::isinf(p) || !(largest > 0.0)) return largest;
    if (p == 1.0) {
        for (int64_t i = 0; i < k; ++i) sum += s[i];
        return sum;
    }
    for (int64_t i = 0; i < k; ++i) {
        const double unit = s[i] / largest;
        sum += p == 2.0 ? unit * unit : std::pow(unit, p);
    }
    return largest * std::pow(sum, 1.0 / p);
}

// u^r for r >= 0, by products where they are exact.
inline double raised(double u, double r) {
    if (r == 1.0) return u;
    if (r == 2.0) return u * u;
    if (r == 0.5) return std::sqrt(u);
    return r == 0.0 ? 1.0 : std::pow(u, r);
}

// The root x of x + mu x^(p-1) = v, for v > 0, and z = x^(p-1). For p < 2 the unknown is z, so that
// the equation a u + b u^R = v is convex, and Newton's steps descend from any bound; from a guess,
// the first lands above the root.
struct Root {
    double x, z;
};
inline Root shrunk(double v, double mu, double p, double &guess) {
    const bool steep = p < 2.0;
    const double R = steep ? 1.0 / (p - 1.0) : p - 1.0, a = steep ? mu : 1.0, b = steep ? 1.0 : mu;
    double u = guess, power = 0.0;
    bool bounded = !(u > 0.0);
    for (int step = 0; step < 100; ++step) {
        if (bounded && step == 0) {
            u = v / a;
            if (b > 0.0 && R > 1.0) u = std::min(u, std::pow(v / b, 1.0 / R));
        }
        power = raised(u, R - 1.0);
        const double change = (a * u + b * power * u - v) / (a + b * R * power);
        const double next = u - change;
        if (!bounded && (!(next > 0.0) || a * next > v || (next > 2.0 * u && R > 4.0))) {
            bounded = true;  // the guess is far away
            step = -1;
            continue;
        }
        if (bounded && !(change > 1e-16 * u)) break;
        bounded = bounded || step == 0;
        const bool close = std::abs(change) < 1e-8 * u / R;
        u = next;
        if (close) {
            power *= 1.0 - (R - 1.0) * change / (u + change);
            break;
        }
    }
    guess = u;
    if (!steep) return {u, power * u};
    return {power * u < 0.5 * v ? power * u : v - mu * u, u};
}

// s <- prox of t ||.||^degree / degree in the gauge of p, and its length; degree is 1, 2 or p.
// `guess` keeps the length of the last point, `roots` its unknowns.
inline double shrink(double *s, int64_t k, double p, double degree, double t, double *guess,
                     double *x, double *roots) {
    if (p == 1.0 || std::isinf(p)) {
        // the level c with sum max(s - c, 0) = t, or c = t sum max(s - c, 0) and the other way
        const bool square = degree == 2.0, sum = p == 1.0;
        double level = sum && !square ? t : 0.0;
        for (int64_t before = -1, count = 0; !(sum && !square) && count != before;) {
            before = count;
            double above = 0.0;
            count = 0;
            for (int64_t i = 0; i < k; ++i)
                if (s[i] > level) {
                    above += s[i];
                    ++count;
                }
            if (count == 0) break;
            level = sum      ? t * above / (1.0 + t * count)
                    : square ? above / (count + t)
                             : (above - t) / count;
            level = std::max(level, 0.0);
        }
        for (int64_t i = 0; i < k; ++i)
            s[i] = sum ? std::max(s[i] - level, 0.0) : std::min(s[i], level);
        return length(s, k, p);
    }
    if (degree == p) {
        for (int64_t i = 0; i < k; ++i) s[i] = s[i] > 0.0 ? shrunk(s[i], t, p, roots[i]).x : 0.0;
        return length(s, k, p);
    }
    const double q = p / (p - 1.0), norm = length(s, k, p);
    if (!(norm > 0.0) || (degree == 1.0 && length(s, k, q) <= t)) {
        std::memset(s, 0, sizeof(double) * k);
        return 0.0;
    }
    // In units of the length nu of the point, y + t nu^(degree - 2) y^(p-1) = s / nu with
    // ||y|| = 1: Newton's method for log nu between bounds.
    const double tight = 1e-15 * (10.0 + std::min(p, 1000.0));
    double low = -INF, high = std::log(norm), size = norm;
    double log_nu = *guess > 0.0 && std::log(*guess) < high ? std::log(*guess) : high;
    for (int step = 0; step < 200; ++step) {
        const double nu = std::exp(log_nu), mu = t * std::pow(nu, degree - 2.0);
        double sum = 0.0, bend = 0.0;
        for (int64_t i = 0; i < k; ++i) {
            x[i] = 0.0;
            if (!(s[i] > 0.0)) continue;
            const Root root = shrunk(s[i] / nu, mu, p, roots[i]);
            const double weight = root.x * root.z, pull = mu * root.z;
            x[i] = nu * root.x;
            sum += weight;
            bend += weight * pull / (root.x + (p - 1.0) * pull);
        }
        size = nu;
        const double off = std::log(sum) / p;
        const double slope = sum > 0.0 ? (p - degree) * bend / sum - 1.0 : 0.0;
        (off > 0.0 ? low : high) = log_nu;
        double next = log_nu - off / slope;
        if (!(next > low && next < high)) next = low > -INF ? 0.5 * (low + high) : log_nu - 1.0;
        const double change = std::abs(next - log_nu);
        log_nu = next;
        if (change < tight || std::abs(off) < tight || high - low < tight) break;
    }
    *guess = size;
    std::memcpy(s, x, sizeof(double) * k);
    return size;
}

typedef void (*Decompose)(char *, int *, int *, double *, int *, double *, double *, int *,
                          double *, int *, double *, int *, int *, int *);

// y <- c y - s z and z <- s y + c z.
inline void rotate(double *RESTRICT y, double *RESTRICT z, double c, double s, int64_t n) {
    int64_t k = 0;
    for (; k + WIDE <= n; k += WIDE) {
        const Lane a = at(y + k), b = at(z + k);
        at(y + k) = c * a - s * b;
        at(z + k) = s * a + c * b;
    }
    for (; k < n; ++k) {
        const double a = y[k], b = z[k];
        y[k] = c * a - s * b;
        z[k] = s * a + c * b;
    }
}

// Rows of Y (q, n) made orthogonal by rotations (Hestenes 1958), which turn the rows of Q (q, q) as
// well; their lengths are the singular values. From rows that are nearly orthogonal, two sweeps.
inline bool orthogonalise(double *Y, double *Q, double *s, int64_t q, int64_t n) {
    for (int sweep = 0; sweep < 30; ++sweep) {
        double largest = 0.0;
        for (int64_t i = 0; i < q; ++i) {
            s[i] = dot(Y + i * n, Y + i * n, n);
            largest = std::max(largest, s[i]);
        }
        bool turned = false;
        for (int64_t i = 0; i < q; ++i)
            for (int64_t j = i + 1; j < q; ++j) {
                const double c = dot(Y + i * n, Y + j * n, n), size = std::sqrt(s[i] * s[j]);
                if (!(std::abs(c) > 1e-14 * size && size > 1e-24 * largest)) continue;
                const double zeta = (s[j] - s[i]) / (2.0 * c);
                const double t = std::copysign(1.0, zeta)
                                 / (std::abs(zeta) + std::sqrt(1.0 + zeta * zeta));
                const double cosine = 1.0 / std::sqrt(1.0 + t * t);
                rotate(Y + i * n, Y + j * n, cosine, cosine * t, n);
                rotate(Q + i * q, Q + j * q, cosine, cosine * t, q);
                s[i] -= t * c;
                s[j] += t * c;
                turned |= std::abs(c) > 1e-8 * size;  // the next sweep would find rounding
            }
        if (turned) continue;
        for (int64_t i = 0; i < q; ++i) s[i] = std::sqrt(dot(Y + i * n, Y + i * n, n));
        return true;
    }
    return false;
}

// Matrices (dx, dz) whose norm is a gauge of their entries, singular values or lengths of rows.
struct Measure {
    const Gauge &gauge;
    int64_t dx, dz;
    double *room;  // of size(dx, dz)
    double guess;  // of the length of the next proximal point
    int64_t kept;  // how long the rotations of singular vectors have been kept

    // Sizes up to which rotations from the last singular vectors are quicker than LAPACK.
    bool small() const { return std::min(dx, dz) <= LARGEST_ROTATED; }

    static int64_t work(int64_t dx, int64_t dz) {
        const int64_t q = std::min(dx, dz);
        return 16 * q * q + 72 * (dx + dz) + 128;
    }
    static int64_t size(int64_t dx, int64_t dz) {
        const int64_t q = std::min(dx, dz);
        return 5 * dx * dz + q * (dx + dz + q) + work(dx, dz) + 4 * q + 8;
    }
    int64_t count() const {
        return gauge.lift == ENTRIES ? dx * dz : gauge.lift == ROWS ? dx : std::min(dx, dz);
    }
    double *roots() { return room; }                    // (count)
    double *numbers() { return room + count(); }  // (count) what the gauge is of
    double *old() { return numbers() + count(); }     // (count)
    double *spare() { return old() + count(); }  // (count)
    double *left() { return spare() + count() + dx * dz; }    // (q, dz)
    double *right() { return left() + dz * std::min(dx, dz); }  // (dx, q)

    double *turns() { return right() + dx * std::min(dx, dz); }  // (q, q)

    // Of X, or of its transpose where that has fewer rows: orthogonal rows in left().
    bool rotated(const double *X) {
        const int64_t q = std::min(dx, dz), n = std::max(dx, dz);
        double *Q = turns(), *Y = left();
        if (kept % LONGEST_KEPT == 0)
            for (int64_t i = 0; i < q * q; ++i) Q[i] = i % (q + 1) == 0 ? 1.0 : 0.0;
        ++kept;
        std::memset(Y, 0, sizeof(double) * q * n);
        for (int64_t i = 0; i < q; ++i)
            if (dx <= dz)
                for (int64_t r = 0; r < q; ++r) axpy(Y + i * n, Q[i * q + r], X + r * dz, n);
            else
                for (int64_t r = 0; r < n; ++r) Y[i * n + r] = dot(Q + i * q, X + r * dz, q);
        return orthogonalise(Y, Q, numbers(), q, n);
    }

    // V += sum_i weight_i u_i v_i^T of the singular vectors, weights in units of singular values.
    void add(const double *share, double *V) {
        const int64_t q = std::min(dx, dz), n = std::max(dx, dz);
        const double *Q = turns(), *Y = left();
        for (int64_t i = 0; i < q; ++i) {
            if (share[i] == 0.0) continue;
            for (int64_t r = 0; r < dx; ++r)
                if (dx <= dz) axpy(V + r * dz, share[i] * Q[i * q + r], Y + i * n, dz);
                else axpy(V + r * dz, share[i] * Y[i * n + r], Q + i * q, dz);
        }
    }

    // The numbers of X, and its singular vectors where they are asked for.
    bool measure(const double *X, bool vectors) {
        double *s = numbers();
        if (gauge.lift == ENTRIES) {
            for (int64_t i = 0; i < dx * dz; ++i) s[i] = std::abs(X[i]);
            return true;
        }
        if (gauge.lift == ROWS) {
            for (int64_t r = 0; r < dx; ++r) s[r] = std::sqrt(dot(X + r * dz, X + r * dz, dz));
            return true;
        }
        if (small()) return rotated(X);
        int rows = int(dz), columns = int(dx), q = int(std::min(dx, dz)), info = 0;
        int length_of_work = int(work(dx, dz));
        double *copy = spare() + count(), *rest = right() + q * dx;
        std::memcpy(copy, X, sizeof(double) * dx * dz);
        char job = vectors ? 'S' : 'N';
        ((Decompose)gauge.svd)(&job, &rows, &columns, copy, &rows, s, left(), &rows, right(), &q,
                               rest, &length_of_work, (int *)(rest + length_of_work), &info);
        return info == 0;
    }

    double value(const double *X) {
        return measure(X, false) ? length(numbers(), count(), gauge.p) : INF;
    }
    double dual_value(const double *X) {
        if (!measure(X, false)) return INF;
        const double p = gauge.p;
        return length(numbers(), count(), p == 1.0        ? INF
                                          : std::isinf(p) ? 1.0
                                                          : p / (p - 1.0));
    }

    // V = prox of t f at X, and its norm; negative where the singular values are not found.
    double proximal(const double *X, double t, double *V) {
        if (!measure(X, true)) return -1.0;
        const int64_t k = count();
        double *s = numbers(), *before = old();
        std::memcpy(before, s, sizeof(double) * k);
        const double norm = shrink(s, k, gauge.p, gauge.degree, t, &guess, spare(), roots());
        if (gauge.lift == ENTRIES) {
            for (int64_t i = 0; i < k; ++i) V[i] = X[i] < 0.0 ? -s[i] : s[i];
        } else if (gauge.lift == ROWS) {
            for (int64_t r = 0; r < dx; ++r) {
                const double share = before[r] > 0.0 ? s[r] / before[r] : 0.0;
                for (int64_t c = 0; c < dz; ++c) V[r * dz + c] = share * X[r * dz + c];
            }
        } else {
            int64_t positive = 0, moved = 0;
            for (int64_t i = 0; i < k; ++i) {
                positive += s[i] > 0.0;
                moved += s[i] != before[i];
            }
            const bool from = moved < positive;  // fewer products from X than from zero
            if (from) std::memcpy(V, X, sizeof(double) * dx * dz);
            else std::memset(V, 0, sizeof(double) * dx * dz);
            for (int64_t i = 0; i < k; ++i) {
                const double weight = from ? s[i] - before[i] : s[i];
                if (small()) {
                    s[i] = before[i] > 0.0 ? weight / before[i] : 0.0;
                    continue;
                }
                if (weight == 0.0) continue;
                for (int64_t r = 0; r < dx; ++r)
                    axpy(V + r * dz, weight * right()[r * k + i], left() + i * dz, dz);
            }
            if (small()) add(s, V);
        }
        return norm;
    }
};

}  // namespace
