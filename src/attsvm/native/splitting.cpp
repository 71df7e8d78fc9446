// Douglas-Rachford splitting of a small programme: the proximal map of a norm against the exact
// projection onto the margins, with Anderson acceleration.
//
//   1. V = prox of t f at z
//   2. W = the projection of 2 V - z onto the margins
//   3. now and then: certify V and W, keep the better
//   4. now and then: another step t, else the next z from z + (W - V) and the points before
//
// Rows have length one here, and the solution norm one; see solvers/splitting.py.
#include "active_set.hpp"
#include "gauges.hpp"

namespace {

constexpr int64_t MEMORY = 40;         // columns of the acceleration at most,
constexpr int64_t EASY = 10, LATE = 150; // and up to which iteration fewer where these are enough
constexpr int64_t WINDOW = 60;         // iterations in which the residual must fall,
constexpr double FALLEN = 0.7;         // to this share,
constexpr double FARTHEST = 1e3;       // step in units of the residual
constexpr int64_t PLAIN = 20;          // or so many are made without acceleration
constexpr int64_t CHECKED = 5;         // iterations between certificates
constexpr int64_t BALANCED = 10;       // iterations between changes of the step,
constexpr int64_t LAST_BALANCED = 400; // which end here
constexpr int64_t PATIENT = 40;        // iterations without gain once the error is enough
constexpr double ROUNDING = 4e-15;     // of a margin of a unit row, beside weights of size one
constexpr int64_t SWEEPS = 8;          // of coordinates, before rows are exchanged one by one
constexpr double RIDGE = 1e-12;        // of the least squares of the acceleration

// Anderson's extrapolation of the fixed point of z -> z + r(z), as in solvers/anderson.py. Where a
// residual grows after it, the plain step is taken instead; where none falls for long, plain steps
// go on for a while.
struct Anderson {
    int64_t d, memory;                 // numbers of a point; columns of differences, at most,
    int64_t columns, column;           // how many there are, and which one is written next
    int64_t points, plain;             // points so far; plain steps that are left
    double *dz, *dr;                   // (MEMORY, d) differences of points and residuals
    double *z, *r, *next;              // (d) the last point, its residual, its plain step
    double H[MEMORY * MEMORY], L[MEMORY * MEMORY], gamma[MEMORY];  // normal equations
    double before, least, window;      // residuals: the last, the least of all, of this window
    bool fresh, extrapolated;

    void forget() {
        columns = column = 0;
        fresh = true;
        extrapolated = false;
    }
    void start() {
        forget();
        points = plain = 0;
        before = least = window = INF;
    }

    // Advances `point` by its residual.
    void advance(double *point, const double *residual, double size) {
        // An extrapolation that has led away is undone.
        if (extrapolated && size > 2.0 * before) {
            std::memcpy(point, next, sizeof(double) * d);
            before = INF;
            forget();
            return;
        }
        before = size;
        // A window without progress is followed by plain steps.
        window = std::min(window, size);
        if (++points % WINDOW == 0) {
            const bool stuck = window > FALLEN * least;
            least = stuck ? INF : std::min(least, window);
            window = INF;
            if (stuck) {
                forget();
                plain = PLAIN;
            }
        }
        // The change since the last point replaces the oldest.
        if (!fresh) {
            double *a = dz + column * d, *b = dr + column * d;
            for (int64_t i = 0; i < d; ++i) a[i] = point[i] - z[i];
            for (int64_t i = 0; i < d; ++i) b[i] = residual[i] - r[i];
            columns = std::min(columns + 1, memory);
            for (int64_t i = 0; i < columns; ++i)
                H[column * MEMORY + i] = H[i * MEMORY + column] = dot(dr + i * d, b, d);
            column = (column + 1) % memory;
        }
        std::memcpy(z, point, sizeof(double) * d);
        std::memcpy(r, residual, sizeof(double) * d);
        fresh = false;
        // The plain step, less what the combination of least residual takes from it.
        axpy(point, 1.0, residual, d);
        extrapolated = plain == 0 && columns > 1 && coefficients();
        plain = std::max<int64_t>(plain - 1, 0);
        if (!extrapolated) return;
        std::memcpy(next, point, sizeof(double) * d);
        for (int64_t i = 0; i < columns; ++i) {
            axpy(point, -gamma[i], dz + i * d, d);
            axpy(point, -gamma[i], dr + i * d, d);
        }
        // Steps far longer than the residual come from rounding.
        double far = 0.0;
        for (int64_t i = 0; i < d; ++i) far += (point[i] - z[i]) * (point[i] - z[i]);
        if (std::sqrt(far) <= FARTHEST * size) return;
        std::memcpy(point, next, sizeof(double) * d);
        forget();
    }

    // The combination of differences that leaves the least residual.
    bool coefficients() {
        double trace = 0.0;
        for (int64_t i = 0; i < columns; ++i) trace += H[i * MEMORY + i];
        for (int64_t i = 0; i < columns; ++i) gamma[i] = dot(dr + i * d, r, d);
        // Cholesky's factor of the normal equations, and substitution as it is made.
        for (int64_t i = 0; i < columns; ++i) {
            for (int64_t j = 0; j <= i; ++j) {
                double left = H[i * MEMORY + j] + (i == j ? RIDGE * trace + 1e-300 : 0.0);
                for (int64_t q = 0; q < j; ++q) left -= L[i * MEMORY + q] * L[j * MEMORY + q];
                if (i == j && !(left > 0.0)) return false;
                L[i * MEMORY + j] = i == j ? std::sqrt(left) : left / L[j * MEMORY + j];
            }
            for (int64_t q = 0; q < i; ++q) gamma[i] -= L[i * MEMORY + q] * gamma[q];
            gamma[i] /= L[i * MEMORY + i];
        }
        for (int64_t i = columns - 1; i >= 0; --i) {
            gamma[i] /= L[i * MEMORY + i];
            for (int64_t q = 0; q < i; ++q) gamma[q] -= L[i * MEMORY + q] * gamma[i];
        }
        return true;
    }
};

struct Splitting {
    Programme rows;  // of length one
    Quadratic quadratic;
    ActiveSet set;
    Measure norm;
    Iterate &out;
    int64_t d;
    double *lengths, *sides, *caps;               // (m) of the rows; b; their boxes
    double *point, *V, *before, *centre, *W, *r;  // (d)
    double *margins, *change, *moved;             // (m), (m), (dx)
    double scale;                                 // of the weights
    int64_t since;                                // exchanges of rows since the last factorisation
    Anderson anderson;

    bool soft() const { return !std::isinf(caps[0]); }

    void pull(const double *lam, double *X) { adjoint(&rows, 0, rows.n, lam, moved, X); }

    // W = the point of the margins nearest to the centre, or with a box the one of least loss.
    Outcome project() {
        const int64_t m = rows.m;
        values(&rows, 0, rows.n, centre, moved, margins);
        double *b = const_cast<double *>(quadratic.b);
        for (int64_t c = 0; c < m; ++c) b[c] = sides[c] - margins[c];
        double size = 1.0;
        for (int64_t i = 0; i < d; ++i) size = std::max(size, std::abs(centre[i]));
        int64_t steps = 0;
        if (since > m) {  // rotations of the factor have rounded often enough
            begin(quadratic, set);
            silent();
            since = 0;
        }
        const Outcome outcome = solve(quadratic, set, ROUNDING * size, 4 * m + 100, steps);
        out.exchanges += steps;
        since += steps;
        std::memcpy(W, centre, sizeof(double) * d);
        if (outcome != CONTRADICTION) pull(quadratic.lam, W);
        return outcome;
    }

    // One step of refinement of the projection: the free rows met to rounding.
    void refine() {
        values(&rows, 0, rows.n, W, moved, margins);
        double *x = set.work;
        for (int64_t i = 0; i < set.count; ++i)
            x[i] = sides[set.rows[i]] - margins[set.rows[i]];
        substitute(set.factor, set.m, set.count, x);
        std::memset(change, 0, sizeof(double) * rows.m);
        for (int64_t i = 0; i < set.count; ++i) change[set.rows[i]] = x[i];
        pull(change, W);
    }

    // The larger of gap and missed margin, relative, of weights whose norm is known.
    double error_of(const double *X, double size, double top, double bottom) {
        const int64_t m = rows.m;
        values(&rows, 0, rows.n, X, moved, margins);
        if (soft()) {
            double missed = 0.0;
            for (int64_t c = 0; c < m; ++c)
                missed += caps[c] * std::max(sides[c] - margins[c], 0.0);
            const double primal = 0.5 * size * size + missed;
            return (primal - (top / out.t - 0.5 * bottom * bottom / (out.t * out.t))) / primal;
        }
        bool negative = false;
        double largest = 0.0, ratio = INF, missed = 0.0;
        for (int64_t c = 0; c < m; ++c) {
            negative |= sides[c] < 0.0;
            largest = std::max(largest, sides[c]);
        }
        for (int64_t c = 0; c < m; ++c)
            if (sides[c] > (negative ? 0.5 * largest : 0.0))
                ratio = std::min(ratio, margins[c] / sides[c]);
        if (!(ratio > 0.0) || !(bottom > 0.0)) return INF;
        for (int64_t c = 0; c < m; ++c) missed = std::max(missed, sides[c] - margins[c] / ratio);
        return std::max(missed / largest, 1.0 - ratio * top / (bottom * size));
    }

    // Multipliers of half the squared norm: of hard margins b^T lambda is the square of the bound.
    void keep(const double *X, double error, double top, double bottom) {
        if (!(error < out.error)) return;
        out.error = error;
        for (int64_t i = 0; i < d; ++i) out.W[i] = X[i] * scale;
        const double unit = scale * (soft() ? 1.0 / out.t : top / (bottom * bottom));
        for (int64_t c = 0; c < rows.m; ++c) out.lam[c] = quadratic.lam[c] * unit / lengths[c];
    }

    // Certify the proximal point and the projection.
    void check(double size) {
        double top = 0.0;
        for (int64_t c = 0; c < rows.m; ++c) top += sides[c] * quadratic.lam[c];
        std::memset(change, 0, sizeof(double) * rows.m);
        double *pulled = centre;
        std::memset(pulled, 0, sizeof(double) * d);
        pull(quadratic.lam, pulled);
        const double bottom = norm.dual_value(pulled);
        keep(V, error_of(V, size, top, bottom), top, bottom);
        // for p < 2 small entries of V, unlike those of W, are powers of multipliers to the last
        // digit
        const bool fine = norm.gauge.p > 1.0 && norm.gauge.p < 2.0;
        if (out.error <= (fine ? out.enough : out.target)) return;
        if (!soft()) refine();
        keep(W, error_of(W, norm.value(W), top, bottom), top, bottom);
    }

    // The step at which the relative distance of V and W and the relative change of V are alike;
    // false where they are already.
    bool balance() {
        double distance = 0.0, length = 0.0, change_of = 0.0, dual = 0.0;
        for (int64_t i = 0; i < d; ++i) {
            distance += r[i] * r[i];
            length += V[i] * V[i];
            change_of += (V[i] - before[i]) * (V[i] - before[i]);
            dual += (point[i] - V[i]) * (point[i] - V[i]);
        }
        if (!(distance > 0.0 && change_of > 0.0 && length > 0.0 && dual > 0.0)) return false;
        double factor = std::sqrt(std::sqrt(change_of / dual) / std::sqrt(distance / length));
        if (factor < 1.7320508 && factor > 1.0 / 1.7320508) return false;
        factor = std::min(std::max(factor, 0.25), 4.0);
        for (int64_t i = 0; i < d; ++i) {
            const double next = point[i] + r[i];
            point[i] = V[i] + (next - V[i]) * factor;
        }
        rescale(factor);
        return true;
    }

    void rescale(double factor) {
        out.t *= factor;
        double *cap = const_cast<double *>(quadratic.cap);
        for (int64_t c = 0; c < rows.m; ++c) {
            quadratic.lam[c] *= factor;
            cap[c] *= factor;
        }
    }

    // Multipliers near those of the Frobenius norm, and the rows that they make free.
    void sweep() {
        const int64_t m = rows.m;
        double *lam = quadratic.lam, *slope = quadratic.slope;
        for (int64_t c = 0; c < m; ++c) {
            lam[c] = 0.0;
            slope[c] = -sides[c];
        }
        for (int64_t round = 0; round < SWEEPS; ++round)
            for (int64_t c = 0; c < m; ++c) {
                const double *row = quadratic.G + c * m;
                if (!(row[c] > 0.0)) continue;
                const double next = std::min(std::max(lam[c] - slope[c] / row[c], 0.0), caps[c]);
                if (next == lam[c]) continue;
                axpy(slope, next - lam[c], row, m);
                lam[c] = next;
            }
    }

    // Rows of zeros miss their right-hand sides whatever the weights are; false where they may not.
    bool silent() {
        for (int64_t c = 0; c < rows.m; ++c)
            if (!(quadratic.G[c * rows.m + c] > 0.0) && sides[c] > 0.0) {
                if (!soft()) return false;
                set.side[c] = CAPPED;
            }
        return true;
    }

    // Weights of norm one and multipliers of a subgradient, from a start of any scale.
    bool begin_at() {
        const int64_t m = rows.m;
        std::memset(centre, 0, sizeof(double) * d);
        pull(quadratic.lam, centre);
        const double size = norm.value(W), pulled = norm.dual_value(centre);
        if (!(size > 0.0 && size < INF && pulled > 0.0 && pulled < INF)) return false;
        const double lengthW = std::sqrt(dot(W, W, d));
        const double lengthU = std::sqrt(dot(centre, centre, d));
        double top = 0.0;
        for (int64_t c = 0; c < m; ++c) top += sides[c] * quadratic.lam[c];
        // of soft margins the multipliers have a scale, up to which theirs is the best bound
        double share = 1.0;
        scale = size;
        if (soft()) {
            share = out.warm ? 1.0 : std::min(1.0, std::max(top / (pulled * pulled), 1e-3));
            const double bound = share * pulled;
            scale = bound > 0.1 * size && bound < 10.0 * size ? bound : size;
        }
        for (int64_t c = 0; c < m; ++c) {
            sides[c] /= scale;
            caps[c] /= scale;
        }
        const double unit = soft() ? share / scale : 1.0 / pulled;
        if (!(out.t > 0.0)) out.t = lengthW / scale / (lengthU * unit);
        double *cap = const_cast<double *>(quadratic.cap);
        for (int64_t c = 0; c < m; ++c) {
            quadratic.lam[c] *= unit * out.t;
            cap[c] = caps[c] * out.t;
        }
        for (int64_t i = 0; i < d; ++i) {
            before[i] = V[i] = W[i] / scale;
            point[i] = V[i] + centre[i] * unit * out.t;
        }
        return true;
    }

    // The steps at the top of this file.
    Outcome run() {
        out.iterations = out.exchanges = 0;
        out.error = INF;
        // Begin from the iterate, or from the Frobenius solution.
        if (out.warm) {
            for (int64_t i = 0; i < d; ++i) W[i] = out.W[i];
            for (int64_t c = 0; c < rows.m; ++c) quadratic.lam[c] = out.lam[c] * lengths[c];
            begin(quadratic, set);
            if (!silent()) return STOPPED;
        } else {
            out.t = 0.0;
            sweep();
            begin(quadratic, set);
            if (!silent()) return STOPPED;
            std::memset(centre, 0, sizeof(double) * d);
            const Outcome outcome = project();
            if (outcome == CONTRADICTION)
                for (int64_t c = 0; c < rows.m; ++c) out.lam[c] = quadratic.lam[c] / lengths[c];
            if (outcome != SOLVED) return outcome;
        }
        if (!begin_at()) return STOPPED;
        int64_t gained = 0;
        anderson.start();
        while (out.iterations < out.most) {
            // 1. The proximal map.
            const double size = norm.proximal(point, out.t, V);
            if (!(size >= 0.0 && size < INF)) return STOPPED;
            // 2. The projection.
            for (int64_t i = 0; i < d; ++i) centre[i] = 2.0 * V[i] - point[i];
            if (project() == CONTRADICTION) return STOPPED;
            for (int64_t i = 0; i < d; ++i) r[i] = W[i] - V[i];
            if (++out.iterations == LATE && anderson.memory < MEMORY) {
                anderson.memory = MEMORY;
                anderson.forget();
            }
            // 3. Certificates.
            if (out.iterations % CHECKED == 0) {
                const double before_check = out.error;
                check(size);
                if (out.error <= out.target) return SOLVED;
                if (out.error < 0.5 * before_check) gained = out.iterations;
                if (out.error <= out.enough && out.iterations - gained >= PATIENT) return SOLVED;
            }
            // 4. Another step, or the next point.
            if (out.iterations % BALANCED == 0 && out.iterations <= LAST_BALANCED && balance())
                anderson.forget();
            else
                anderson.advance(point, r, std::sqrt(dot(r, r, d)));
            std::memcpy(before, V, sizeof(double) * d);
        }
        return STOPPED;
    }
};

}  // namespace

PUBLIC int64_t splitting_room(int64_t m, int64_t n, int64_t dx, int64_t dz) {
    const int64_t d = dx * dz;
    return 2 * m * m + n * n + (m + 6) * dx + n * dz + 14 * m + 8 + (9 + 2 * MEMORY) * d
           + Measure::size(dx, dz);
}

PUBLIC int64_t measure_room(int64_t dx, int64_t dz) { return 2 + Measure::size(dx, dz); }

// V = prox of t f at X (dx, dz), and its norm; negative where singular values are not found. The
// room begins with two zeros, and goes on to the next matrix, which is quicker where that is near.
PUBLIC double proximal(const Gauge *gauge, int64_t dx, int64_t dz, const double *X, double t,
                       double *room, double *V) {
    Measure norm{*gauge, dx, dz, room + 2, room[0], int64_t(room[1])};
    const double size = norm.proximal(X, t, V);
    room[0] = norm.guess;
    room[1] = double(norm.kept);
    return size;
}

// The norm of X, or its dual norm.
PUBLIC double measure(const Gauge *gauge, int64_t dx, int64_t dz, const double *X, int64_t dual,
                      double *room) {
    Measure norm{*gauge, dx, dz, room + 2, room[0], int64_t(room[1])};
    const double size = dual ? norm.dual_value(X) : norm.value(X);
    room[1] = double(norm.kept);
    return size;
}

// Minimise f over the margins, from the start that the iterate holds or from the Frobenius
// solution. A contradiction leaves its multipliers.
PUBLIC int64_t splitting(const Programme *p, const Gauge *gauge, int64_t *rows_of_set,
                         uint8_t *side, Iterate *out) {
    const int64_t m = p->m, n = p->n, d = p->dx * p->dz;
    double *room = out->room;
    double *G = take(room, m * m), *factor = take(room, m * m), *between = take(room, n * n);
    double *D = take(room, m * p->dx), *Z = take(room, n * p->dz);
    double *lengths = take(room, m), *sides = take(room, m), *caps = take(room, m);
    double *b = take(room, m), *cap = take(room, m), *lam = take(room, m), *slope = take(room, m);
    double *margins = take(room, m), *change = take(room, m), *work = take(room, 4 * m);
    double *moved = take(room, p->dx), *vectors = take(room, 9 * d);
    double *differences = take(room, 2 * MEMORY * d);
    // Rows and queries of length one, and their right-hand sides and boxes.
    for (int64_t i = 0; i < n; ++i) {
        const double *z = p->Z + i * p->dz;
        const double query = std::sqrt(dot(z, z, p->dz));
        for (int64_t k = 0; k < p->dz; ++k) Z[i * p->dz + k] = query > 0.0 ? z[k] / query : 0.0;
        for (int64_t c = p->offsets[i]; c < p->offsets[i + 1]; ++c) {
            const double *row = p->D + c * p->dx;
            const double difference = std::sqrt(dot(row, row, p->dx));
            const double length = difference * query;
            lengths[c] = length > 0.0 ? length : 1.0;
            for (int64_t k = 0; k < p->dx; ++k)
                D[c * p->dx + k] = length > 0.0 ? row[k] / difference : 0.0;
            sides[c] = p->b[c] / lengths[c];
            caps[c] = cap[c] = p->cap[c] * lengths[c];
        }
    }
    // Their Gram matrix: products of queries times products of differences.
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j <= i; ++j)
            between[i * n + j] = dot(Z + i * p->dz, Z + j * p->dz, p->dz);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t c = p->offsets[i]; c < p->offsets[i + 1]; ++c)
            for (int64_t j = 0; j <= i; ++j)
                for (int64_t e = p->offsets[j]; e < p->offsets[j + 1] && e <= c; ++e)
                    G[c * m + e] = G[e * m + c] =
                        between[i * n + j] * dot(D + c * p->dx, D + e * p->dx, p->dx);
    const Programme rows{m, n, p->dx, p->dz, D, Z, b, cap, p->offsets, p->free_sign};
    Splitting state{rows,
                    Quadratic{G, b, cap, p->free_sign, lam, slope},
                    ActiveSet{m, p->dx * p->dz, 0, factor, work, rows_of_set, side},
                    Measure{*gauge, p->dx, p->dz, room, 0.0, 0},
                    *out,
                    d,
                    lengths,
                    sides,
                    caps,
                    vectors,
                    vectors + d,
                    vectors + 2 * d,
                    vectors + 3 * d,
                    vectors + 4 * d,
                    vectors + 5 * d,
                    margins,
                    change,
                    moved,
                    1.0,
                    0,
                    {}};
    std::memset(state.norm.roots(), 0, sizeof(double) * state.norm.count());
    state.anderson.d = d;
    state.anderson.memory = out->easy ? EASY : MEMORY;
    state.anderson.next = vectors + 8 * d;
    state.anderson.z = vectors + 6 * d;
    state.anderson.r = vectors + 7 * d;
    state.anderson.dz = differences;
    state.anderson.dr = differences + MEMORY * d;
    return state.run();
}
