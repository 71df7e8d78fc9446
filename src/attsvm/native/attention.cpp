// Softmax attention under a linear head: the loss, its gradient, and descent.
//
// With e_t the logit of a token relative to the winner's, g_t the score of the winner minus that of
// t, and S_t = exp(e_t), Z = sum S_t, Q_t = exp(e_t - L) g_t, L = max e_t over rivals with
// g_t != 0, the descent direction of the logits is
//
//     b_t = exp(L) |l'(u)| / Z (S_t sum(Q) / Z - Q_t),    b_winner = -sum of the others,
//
// for the margin u = score of the winner + label intercept - exp(L) sum(Q) / Z. Only the factor may
// be of any size: it stays a logarithm for each sequence, and the factors of all meet when the
// largest is known. The gradient of W sums p_i z_i^T, p_i = sum_t b_it x_it.
//
// SequenceArrays go through the stages in blocks, so that loops are long; the blocks of a chunk are
// summed in order, and the sums of chunks in order: bits do not see who computes what.
#include "attsvm.h"
#include "lanes.hpp"
#include "vector_math.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace {

constexpr int64_t TOKENS = 512, MEMBERS = 64;  // at most in a block, but for one longer sequence
enum Losses : int64_t { LOGISTIC = 0, EXPONENTIAL = 1, LINEAR = 2 };

// Where the numbers of a run's room lie.
struct Room {
    double *pulled;                           // (n, d_k) p_i without their factors
    double *log, *slope, *log_output;         // (n) logarithms of the factors of p_i; |l'| without
                                              // its factor, whose logarithm with that of o_i is
                                              // log_output
    double *excess;                           // (n)
    double *outputs;                          // (n, width) of attention
    double *G, *g;                            // (chunks, d_z, d_k), (chunks, width)
    double *up_K, *up_Q, *powers, *blocks;
    int64_t block;  // numbers of a chunk

    explicit Room(const DescentRun &run) {
        const SequenceArrays &s = *run.data;
        double *next = run.workspace;
        auto take = [&next](int64_t count) {
            double *here = next;
            next += count;
            return here;
        };
        pulled = take(s.n * s.d_k);
        log = take(s.n), slope = take(s.n), log_output = take(s.n), excess = take(s.n);
        outputs = take(s.n * run.head_width);
        G = take(s.chunks * s.d_z * s.d_k), g = take(s.chunks * run.head_width);
        up_K = take(run.inner * s.d_k), up_Q = take(run.inner * s.d_z);
        powers = take(std::max(s.d_z * s.d_k, run.head_width));
        block = 7 * std::max(s.longest, std::min(TOKENS, s.N)) + s.d_k + 6 * MEMBERS;
        blocks = take(s.chunks * block);
        size = next - run.workspace;
    }
    int64_t size;
};

// log |l'(u)| but for a factor between one half and one, which only the logistic loss has.
inline double mild(double u, int64_t loss) {
    return loss == LOGISTIC ? -std::max(u, 0.0) : loss == EXPONENTIAL ? -u : 0.0;
}

inline double loss_of(double u, int64_t loss) {
    if (loss == LOGISTIC) return std::max(-u, 0.0) + std::log1p(std::exp(-std::fabs(u)));
    return loss == EXPONENTIAL ? std::exp(-u) : -u;
}

// log(l(b - f) - l(b)) from b and log f, without cancellation and for any size of either.
double log_excess(double b, double log_fall, int64_t loss) {
    if (loss == LINEAR) return log_fall;
    const double fall = std::exp(log_fall);
    double growth = log_fall;  // log(exp(fall) - 1)
    if (fall > 1.0)
        growth = fall + std::log1p(-std::exp(-fall));
    else if (fall > 1e-16)
        growth = std::log(std::expm1(fall));
    if (loss == EXPONENTIAL) return growth - b;
    // the excess is log(1 + exp(x))
    const double x = growth - std::max(b, 0.0) - std::log1p(std::exp(-std::fabs(b)));
    if (x < -37.0) return x;
    return std::log(x > 37.0 ? x : std::log1p(std::exp(x)));
}

// The output of attention without its factor, whose logarithm joins log_output: zero tokens give nothing
// where one of them wins and the head has no intercept.
void attend(const DescentRun &run, const Room &room, int64_t i, const double *e, double *S) {
    const SequenceArrays &s = *run.data;
    const int64_t lo = s.start[i], length = s.start[i + 1] - lo, winner = run.winner[i];
    double *out = room.outputs + i * run.head_width;
    const double *values = s.values + lo * s.d_x, *mean = s.means + i * s.d_x;
    double all = 1.0;
    if (s.is_zero && run.head_width == s.d_x && s.is_zero[winner]) {
        double near = -INF;
        for (int64_t t = 0; t < length; ++t)
            if (!s.is_zero[lo + t]) near = std::max(near, e[t]);
        room.log_output[i] += near;
        all = 0.0;
        for (int64_t t = 0; t < length; ++t) {
            S[t] = s.is_zero[lo + t] ? 0.0 : std::exp(e[t] - near) / run.softmax_sum[i];
            all += S[t];
        }
    } else {
        for (int64_t t = 0; t < length; ++t) S[t] /= run.softmax_sum[i];
    }
    for (int64_t k = 0; k < s.d_x; ++k) out[k] = all * mean[k];
    add_rows(out, S, values, length, s.d_x);
    if (run.head_width > s.d_x) out[s.d_x] = 1.0;
}

// The place of the first highest number; 0 where the first is no number.
inline int64_t first_highest(const double *a, int64_t n) {
    double highest = a[0];
    int64_t t = 0;
    if (n >= WIDE) {
        Lane most = at(a);
        for (t = WIDE; t + WIDE <= n; t += WIDE) most = at(a + t) > most ? at(a + t) : most;
        for (int k = 0; k < WIDE; ++k) highest = most[k] > highest ? most[k] : highest;
    }
    for (; t < n; ++t) highest = a[t] > highest ? a[t] : highest;
    for (t = 0; t < n; ++t)
        if (a[t] == highest) return t;
    return 0;
}

// Writes e, g and e - L (at most 0); returns L.
inline double compare(const double *RESTRICT a, const double *RESTRICT score, int64_t n,
                      double highest, double best, double *RESTRICT e, double *RESTRICT g,
                      double *RESTRICT below) {
    const Lane nothing = Lane{} - INF, zero = {};
    double top = -INF;
    int64_t t = 0;
    if (n >= WIDE) {
        Lane most = nothing;
        for (; t + WIDE <= n; t += WIDE) {
            const Lane relative = at(a + t) - highest, lag = best - at(score + t);
            at(e + t) = relative, at(g + t) = lag;
            const Lane rival = lag != zero ? relative : nothing;
            most = rival > most ? rival : most;
        }
        for (int k = 0; k < WIDE; ++k) top = most[k] > top ? most[k] : top;
    }
    for (; t < n; ++t) {
        e[t] = a[t] - highest;
        g[t] = best - score[t];
        if (g[t] != 0.0 && e[t] > top) top = e[t];
    }
    const double level = top > -INF ? top : 0.0;
#pragma omp simd
    for (t = 0; t < n; ++t) below[t] = e[t] - level < 0.0 ? e[t] - level : 0.0;
    return top;
}

// Multiplies Q by g; returns the sum of S, and that of Q to `total`.
inline double weigh(const double *RESTRICT S, double *RESTRICT Q, const double *RESTRICT g,
                    int64_t n, double &total) {
    Lane masses = {}, sums = {};
    int64_t t = 0;
    for (; t + WIDE <= n; t += WIDE) {
        const Lane product = at(Q + t) * at(g + t);
        at(Q + t) = product;
        sums += product;
        masses += at(S + t);
    }
    double mass = ::total(masses);
    total = ::total(sums);
    for (; t < n; ++t) {
        Q[t] *= g[t];
        total += Q[t];
        mass += S[t];
    }
    return mass;
}

// Writes b = factor (S r - Q) and returns its sum.
inline double coefficients(const double *RESTRICT S, const double *RESTRICT Q, int64_t n,
                           double factor, double r, double *RESTRICT b) {
    Lane sums = {};
    int64_t t = 0;
    for (; t + WIDE <= n; t += WIDE) {
        const Lane value = factor * (at(S + t) * r - at(Q + t));
        at(b + t) = value;
        sums += value;
    }
    double sum = total(sums);
    for (; t < n; ++t) {
        b[t] = factor * (S[t] * r - Q[t]);
        sum += b[t];
    }
    return sum;
}

// All that the sequences from i0 to before i1 need, in one pass over their tokens:
// 1. logits, winners and scores, relative to the winner's;
// 2. exponentials, in one loop over the block;
// 3. margins; under Polyak's rule the loss above that of the best tokens;
// 4. slopes of the loss, coefficients b of the keys, and p_i.
void read_block(const DescentRun &run, const Room &room, int64_t i0, int64_t i1,
                double *RESTRICT here) {
    const SequenceArrays &s = *run.data;
    const int64_t base = s.start[i0], N = s.start[i1] - base, n = i1 - i0;
    double *a = here, *e = a + N, *below = e + N, *g = below + N, *S = g + N, *Q = S + N,
           *scores = Q + N;
    double *moved = scores + N, *top = moved + s.d_k, *rise = top + MEMBERS, *minus_size = rise + MEMBERS,
           *ratio = minus_size + MEMBERS, *near = ratio + MEMBERS;
    // 1. logits, winners, scores
    for (int64_t k = 0; k < n; ++k) {
        const int64_t i = i0 + k, lo = s.start[i] - base, hi = s.start[i + 1] - base;
        const double *of_query = moved;
        if (run.moved_queries)
            of_query = run.moved_queries + i * s.d_k;
        else {
            std::memset(moved, 0, sizeof(double) * s.d_k);
            add_rows(moved, s.queries + i * s.d_z, run.W, s.d_z, s.d_k);
        }
        const double *keys = s.keys + base * s.d_k;
        dot_rows(keys + lo * s.d_k, of_query, hi - lo, s.d_k, a + lo);
        const double *score = run.token_score ? run.token_score + base : scores;
        if (!run.token_score) {
            const double *values = s.values + base * s.d_x;
            dot_rows(values + lo * s.d_x, run.head, hi - lo, s.d_x, scores + lo);
            for (int64_t t = lo; t < hi; ++t) scores[t] *= s.labels[i];
        }
        const int64_t w = lo + first_highest(a + lo, hi - lo);
        const double best = score[w];
        top[k] = compare(a + lo, score + lo, hi - lo, a[w], best, e + lo, g + lo, below + lo);
        run.winner[i] = base + w;
        run.margin[i] =
            best + (run.token_score ? run.intercept_score[i]
                              : s.labels[i] * (dot(s.means + i * s.d_x, run.head, s.d_x) +
                                               run.head[s.d_x])) +
            e[w];  // 0, or NaN where a logit is not finite
    }
    // 2. exponentials
    exp_into(e, S, N);
    exp_into(below, Q, N);
    exp_into(top, rise, n);
    // 3. margins
    for (int64_t k = 0; k < n; ++k) {
        const int64_t i = i0 + k;
        const int64_t lo = s.start[i] - base;
        double total;
        run.softmax_sum[i] = weigh(S + lo, Q + lo, g + lo, s.start[i + 1] - base - lo, total);
        ratio[k] = total / run.softmax_sum[i];
        near[k] = run.margin[i];
        run.margin[i] -= rise[k] * ratio[k];
        minus_size[k] = -std::fabs(run.margin[i]);
    }
    if (run.rules[0].kind == POLYAK) {
        for (int64_t k = 0; k < n; ++k) {
            const int64_t i = i0 + k;
            const double lag = run.best_score[i] - near[k];  // exactly zero for the best token
            double log_fall = -INF;
            if (lag > 0.0) {
                const double fall = lag + std::exp(top[k]) * ratio[k];
                if (fall > 0.0) log_fall = std::log(fall);
            } else if (ratio[k] > 0.0)
                log_fall = top[k] + std::log(ratio[k]);
            room.excess[i] = log_fall > -INF ? log_excess(run.best_score[i], log_fall, run.loss) : -INF;
        }
    }
    // 4. slopes, coefficients, p_i
    if (run.loss == LOGISTIC)
        exp_into(minus_size, rise, n);
    else
        std::fill(rise, rise + n, 0.0);
    for (int64_t k = 0; k < n; ++k) {
        const int64_t i = i0 + k, lo = s.start[i] - base, hi = s.start[i + 1] - base;
        const double slope = 1.0 / (1.0 + rise[k]);
        const double factor = slope / run.softmax_sum[i], r = ratio[k];
        room.log_output[i] = mild(run.margin[i], run.loss);
        room.log[i] = top[k] + room.log_output[i];
        room.slope[i] = s.labels[i] * slope;
        a[run.winner[i] - base] -= coefficients(S + lo, Q + lo, hi - lo, factor, r, a + lo);
        double *pulled = room.pulled + i * s.d_k;
        std::memset(pulled, 0, sizeof(double) * s.d_k);
        add_rows(pulled, a + lo, s.keys + (base + lo) * s.d_k, hi - lo, s.d_k);
        if (run.head_width) attend(run, room, i, e + lo, S + lo);
    }
}

void read_chunk(const DescentRun &run, const Room &room, int64_t chunk) {
    const SequenceArrays &s = *run.data;
    const int64_t stop = s.chunk_start[chunk + 1];
    for (int64_t i = s.chunk_start[chunk]; i < stop;) {
        int64_t j = i + 1;
        while (j < stop && s.start[j + 1] - s.start[i] <= TOKENS && j - i < MEMBERS) ++j;
        read_block(run, room, i, j, room.blocks + chunk * room.block);
        i = j;
    }
}

double largest(const double *log, int64_t n) {
    double most = -INF;
    for (int64_t i = 0; i < n; ++i) most = std::max(most, log[i]);
    return most;
}

inline double base_of(double log) { return log > -INF ? log : 0.0; }

void sum_chunk(const DescentRun &run, const Room &room, int64_t chunk, double log_W, double log_head) {
    const SequenceArrays &s = *run.data;
    double *G = room.G + chunk * s.d_z * s.d_k, *g = room.g + chunk * run.head_width;
    double *shares = room.blocks + chunk * room.block, *weights = shares + MEMBERS;
    std::memset(G, 0, sizeof(double) * s.d_z * s.d_k);
    std::fill(g, g + run.head_width, 0.0);
    const int64_t stop = s.chunk_start[chunk + 1];
    for (int64_t i = s.chunk_start[chunk]; i < stop; i += MEMBERS) {
        const int64_t count = std::min(MEMBERS, stop - i);
        for (int64_t k = 0; k < count; ++k) weights[k] = room.log[i + k] - log_W;
        exp_into(weights, shares, count);
        for (int64_t b = 0; b < s.d_z; ++b) {
            for (int64_t k = 0; k < count; ++k)
                weights[k] = shares[k] * s.queries[(i + k) * s.d_z + b];
            add_rows(G + b * s.d_k, weights, room.pulled + i * s.d_k, count, s.d_k);
        }
        if (!run.head_width) continue;
        for (int64_t k = 0; k < count; ++k)
            weights[k] = room.slope[i + k] * std::exp(room.log_output[i + k] - log_head);
        add_rows(g, weights, room.outputs + i * run.head_width, count, run.head_width);
    }
}

// Euclidean norm that neither overflows nor underflows.
double euclidean(const double *x, int64_t n) {
    double peak = 0.0;
    for (int64_t j = 0; j < n; ++j) peak = std::max(peak, std::fabs(x[j]));
    if (peak == 0.0) return 0.0;
    if (peak > 1e-100 && peak < 1e100) return std::sqrt(dot(x, x, n));
    double sum = 0.0;
    for (int64_t j = 0; j < n; ++j) sum += (x[j] / peak) * (x[j] / peak);
    return peak * std::sqrt(sum);
}

// W = Q K
void form(const DescentRun &run) {
    if (!run.inner) return;
    const SequenceArrays &s = *run.data;
    for (int64_t b = 0; b < s.d_z; ++b) {
        double *row = run.W + b * s.d_k;
        std::memset(row, 0, sizeof(double) * s.d_k);
        add_rows(row, run.Q + b * run.inner, run.K, run.inner, s.d_k);
    }
}

// up = share up - penalty w, at the scale of the larger of a gradient and its penalty
void pull_back(double *up, const double *w, int64_t n, double share, double penalty) {
    for (int64_t j = 0; j < n; ++j) up[j] = share * up[j] - penalty * w[j];
}

// Logarithms of the factors that make directions of descent minus the gradients.
struct Ascent {
    double log_W, log_head;
};

// The sums of chunks come together, with the penalty: in G, or up_K and up_Q, and g.
Ascent gather(const DescentRun &run, const Room &room) {
    const SequenceArrays &s = *run.data;
    const int64_t size = s.d_z * s.d_k;
    for (int64_t chunk = 1; chunk < s.chunks; ++chunk) {
        axpy(room.G, 1.0, room.G + chunk * size, size);
        axpy(room.g, 1.0, room.g + chunk * run.head_width, run.head_width);
    }
    if (run.inner) {
        std::memset(room.up_K, 0, sizeof(double) * run.inner * s.d_k);
        for (int64_t b = 0; b < s.d_z; ++b)
            for (int64_t j = 0; j < run.inner; ++j) {
                axpy(room.up_K + j * s.d_k, run.Q[b * run.inner + j], room.G + b * s.d_k, s.d_k);
                room.up_Q[b * run.inner + j] = dot(run.K + j * s.d_k, room.G + b * s.d_k, s.d_k);
            }
    }
    const double log_n = std::log((double)s.n), loudest = largest(room.log, s.n) - log_n;
    const double log_head = run.head_width ? base_of(largest(room.log_output, s.n)) - log_n : 0.0;
    double total = base_of(loudest);
    if (run.penalty > 0.0) {
        const double log_penalty = std::log(run.penalty);
        total = std::max(loudest, log_penalty);
        const double share = std::exp(loudest - total), twice = 2.0 * std::exp(log_penalty - total);
        if (run.inner) {
            pull_back(room.up_K, run.K, run.inner * s.d_k, share, twice);
            pull_back(room.up_Q, run.Q, run.inner * s.d_z, share, twice);
        } else
            pull_back(room.G, run.W, size, share, twice);
    }
    return {total, log_head};
}

// sign(y) |y|^(integer + fraction) of n numbers
void signed_power(const double *RESTRICT y, double *RESTRICT out, int64_t n, double integer,
                  double fraction) {
    if (fraction == 0.5) {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) out[j] = std::sqrt(std::fabs(y[j]));
    } else if (fraction == 0.25) {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) out[j] = std::sqrt(std::sqrt(std::fabs(y[j])));
    } else if (fraction == 0.75) {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
            const double root = std::sqrt(std::fabs(y[j]));
            out[j] = root * std::sqrt(root);
        }
    } else if (fraction != 0.0) {
#if defined(__AVX2__)
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) out[j] = root_one(std::fabs(y[j]), fraction);
#else
        for (int64_t j = 0; j < n; ++j) out[j] = std::pow(std::fabs(y[j]), fraction);
#endif
    } else
        std::fill(out, out + n, 1.0);
    if (integer > 4.0) {
        for (int64_t j = 0; j < n; ++j) out[j] *= std::pow(std::fabs(y[j]), integer);
    } else
        for (int power = 0; power < (int)integer; ++power)
#pragma omp simd
            for (int64_t j = 0; j < n; ++j) out[j] *= std::fabs(y[j]);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) out[j] = std::copysign(out[j], y[j]);
}

// One mirror step along the direction g, whose true size is exp(log_factor) times its own; false
// where it is zero.
bool mirror_step(double *w, double *y, double *g, double *powers, int64_t n, double log_factor,
                 double lr, const ParameterRule &rule) {
    double peak = 0.0;
    for (int64_t j = 0; j < n; ++j) peak = std::max(peak, std::fabs(g[j]));
    if (peak == 0.0) return false;
    if (lr == 0.0) return true;  // no step is no move, and the mirror map would round
    for (int64_t j = 0; j < n; ++j) g[j] /= peak;
    log_factor += std::log(peak);
    double length = lr * std::exp(log_factor);
    if (rule.normalize) {
        signed_power(g, powers, n, rule.inverse_integer, rule.inverse_fraction);
        // sum |g|^q = <sp(g, q - 1), g>, and q - 1 is the exponent from the dual to the weights
        const double norm = std::pow(dot(powers, g, n),
                                     1.0 / (1.0 + rule.inverse_integer + rule.inverse_fraction));
        // eps relative to the true norm: past the smallest number it is infinite, the step zero
        length = lr / norm;
        if (rule.eps > 0.0)
            length /= 1.0 + rule.eps * std::exp(std::min(-log_factor, 709.0)) / norm;
    }
    if (!rule.keeps_dual) signed_power(w, y, n, rule.forward_integer, rule.forward_fraction);
    axpy(y, length, g, n);
    signed_power(y, w, n, rule.inverse_integer, rule.inverse_fraction);
    return true;
}

// The length of Polyak's step along a direction of this norm; infinite where the floor is below the
// infimum and the gradient vanishes against the gap.
double polyak_length(const DescentRun &run, const Room &room, double norm, double log_factor) {
    const int64_t n = run.data->n;
    double highest = -INF, total = 0.0;
    for (int64_t i = 0; i < n; ++i) highest = std::max(highest, room.excess[i]);
    if (highest > -INF) {
        for (int64_t i = 0; i < n; ++i) total += std::exp(room.excess[i] - highest);
        highest += std::log(total);
    }
    // the gap over its factor, which the norm lacks
    double above = std::exp(highest - std::log((double)n) - log_factor - std::log(norm));
    if (run.best_loss_excess != 0.0) above += run.best_loss_excess * std::exp(-log_factor - std::log(norm));
    return std::max(above, 0.0) / (run.polyak_factor * norm);
}

// A step of every parameter; false where all gradients are exactly zero.
bool move(const DescentRun &run, const Room &room, const Ascent &up, double factor,
          double head_factor) {
    const SequenceArrays &s = *run.data;
    const int64_t size = s.d_z * s.d_k;
    const ParameterRule &first = run.rules[0], &second = run.rules[1];
    bool moving = false;
    if (run.inner) {
        const int64_t of_K = run.inner * s.d_k, of_Q = run.inner * s.d_z;
        double norm_K = euclidean(room.up_K, of_K), norm_Q = euclidean(room.up_Q, of_Q);
        moving = norm_K > 0.0 || norm_Q > 0.0;
        if (run.stacked) norm_K = norm_Q = std::hypot(norm_K, norm_Q);
        const double plain = std::exp(up.log_W);
        if (norm_K > 0.0)
            axpy(run.K, first.lr * factor * (first.normalize ? 1.0 / norm_K : plain), room.up_K,
                 of_K);
        if (norm_Q > 0.0)
            axpy(run.Q, second.lr * head_factor * (second.normalize ? 1.0 / norm_Q : plain),
                 room.up_Q, of_Q);
        return moving;
    }
    if (first.kind == MIRROR)
        moving = mirror_step(run.W, run.dual, room.G, room.powers, size, up.log_W,
                             first.lr * factor, first);
    else if (const double norm = euclidean(room.G, size); norm > 0.0) {
        double length = first.normalize ? 1.0 / norm : std::exp(up.log_W);
        if (first.kind == POLYAK) length = polyak_length(run, room, norm, up.log_W);
        length *= first.lr * factor;
        if (first.kind == POLYAK && !std::isfinite(length)) return false;
        axpy(run.W, length, room.G, size);
        moving = true;
    }
    if (!run.head_width) return moving;
    if (second.kind == MIRROR)
        return mirror_step(run.head, run.head_dual, room.g, room.powers, run.head_width, up.log_head,
                           second.lr * head_factor, second) ||
               moving;
    const double norm = euclidean(room.g, run.head_width);
    if (norm > 0.0)
        axpy(run.head, second.lr * head_factor * (second.normalize ? 1.0 / norm
                                                                   : std::exp(up.log_head)),
             room.g, run.head_width);
    return moving || norm > 0.0;
}

// The second pass over some chunks, when every chunk was read.
void sum_chunks_of(const DescentRun &run, const Room &room, int64_t begin, int64_t end) {
    const double log_W = base_of(largest(room.log, run.data->n));
    const double log_head = run.head_width ? base_of(largest(room.log_output, run.data->n)) : 0.0;
    for (int64_t chunk = begin; chunk < end; ++chunk) sum_chunk(run, room, chunk, log_W, log_head);
}

Ascent gradient(const DescentRun &run, const Room &room) {
    const int64_t chunks = run.data->chunks;
    form(run);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) read_chunk(run, room, chunk);
    sum_chunks_of(run, room, 0, chunks);
    return gather(run, room);
}

}  // namespace

// How many numbers a run needs for its room.
PUBLIC int64_t descent_room(const DescentRun *run) {
    double none;
    DescentRun without_memory = *run;
    without_memory.workspace = &none;
    return Room(without_memory).size;
}

// Steps of the runs from `begin` to before `end`, one for every factor, the first of which is
// number `first`; a run whose gradient is zero stops.
PUBLIC void descend(DescentRun *const *runs, int64_t begin, int64_t end, int64_t first, const double *factors,
                    const double *head_factors, int64_t steps, double *room_of_run) {
    for (int64_t r = begin; r < end; ++r) {
        DescentRun &run = *runs[r];
        run.workspace = room_of_run;
        const Room room(run);
        for (int64_t k = 0; k < steps && run.stopped_at < 0; ++k)
            if (!move(run, room, gradient(run, room), factors[k], head_factors[k]))
                run.stopped_at = first + k;
    }
}

// One step of one run whose chunks are shared out: form_weights, read_chunks over all chunks,
// sum_chunks over all, finish_step.
PUBLIC void form_weights(const DescentRun *run) { form(*run); }

PUBLIC void read_chunks(const DescentRun *run, int64_t begin, int64_t end) {
    const Room room(*run);
    for (int64_t chunk = begin; chunk < end; ++chunk) read_chunk(*run, room, chunk);
}

PUBLIC void sum_chunks(const DescentRun *run, int64_t begin, int64_t end) {
    sum_chunks_of(*run, Room(*run), begin, end);
}

PUBLIC void finish_step(DescentRun *run, int64_t step, double factor, double head_factor) {
    const Room room(*run);
    if (!move(*run, room, gather(*run, room), factor, head_factor)) run->stopped_at = step;
}

// Winners, margins and softmax sums, the loss and the norm of the gradient of these runs.
PUBLIC void evaluate_runs(DescentRun *const *runs, int64_t begin, int64_t end, double *room_of_run) {
    for (int64_t r = begin; r < end; ++r) {
        DescentRun &run = *runs[r];
        run.workspace = room_of_run;
        const SequenceArrays &s = *run.data;
        const Room room(run);
        const Ascent up = gradient(run, room);
        const double norm = run.inner ? std::hypot(euclidean(room.up_K, run.inner * s.d_k),
                                                   euclidean(room.up_Q, run.inner * s.d_z))
                                      : euclidean(room.G, s.d_z * s.d_k);
        run.log_gradient_norm = norm > 0.0 ? up.log_W + std::log(norm) : -INF;
        double total = 0.0;
        for (int64_t i = 0; i < s.n; ++i) total += loss_of(run.margin[i], run.loss);
        run.mean_loss = total / (double)s.n;
    }
}

// Losses and gradients of the runs from `begin` to before `end`, of `count` in all:
// (count, d_z, d_k) in the weights or (count, n, d_k) in the moved queries, and (count, width) in
// the head. With
// `rescale` they are divided by the factors whose logarithms are written: figures is (4, count), the
// loss, the logarithm of the largest slope, that of the weights' factor over it, and the head's.
PUBLIC void loss_gradients(DescentRun *const *runs, int64_t begin, int64_t end, int64_t count, int64_t rescale,
                   double *gradients, double *columns, double *figures, double *room_of_run) {
    for (int64_t r = begin; r < end; ++r) {
        DescentRun &run = *runs[r];
        const SequenceArrays &s = *run.data;
        run.workspace = room_of_run;
        const Room room(run);
        read_chunk(run, room, 0);
        double value = 0.0, steepest = -INF;
        for (int64_t i = 0; i < s.n; ++i) {
            value += loss_of(run.margin[i], run.loss);
            steepest = std::max(steepest, mild(run.margin[i], run.loss));
        }
        const double log_W = largest(room.log, s.n);
        const double log_head = run.head_width ? largest(room.log_output, s.n) : steepest;
        figures[r] = value / (double)s.n;
        figures[count + r] = steepest;
        figures[2 * count + r] = log_W - base_of(steepest);
        figures[3 * count + r] = log_head;
        sum_chunk(run, room, 0, base_of(log_W), base_of(log_head));
        const double scale = (rescale ? -1.0 : -std::exp(base_of(log_W))) / (double)s.n;
        const double head_scale = (rescale ? -1.0 : -std::exp(base_of(log_head))) / (double)s.n;
        double *G = gradients + r * (run.moved_queries ? s.n : s.d_z) * s.d_k;
        if (run.moved_queries)
            for (int64_t i = 0; i < s.n; ++i) {
                const double factor = scale * std::exp(room.log[i] - base_of(log_W));
                for (int64_t k = 0; k < s.d_k; ++k)
                    G[i * s.d_k + k] = factor * room.pulled[i * s.d_k + k];
            }
        else
            for (int64_t j = 0; j < s.d_z * s.d_k; ++j) G[j] = scale * room.G[j];
        for (int64_t j = 0; j < run.head_width; ++j)
            columns[r * run.head_width + j] = head_scale * room.g[j];
    }
}

PUBLIC void signed_powers(const double *y, double *out, int64_t n, double integer, double fraction) {
    signed_power(y, out, n, integer, fraction);
}

PUBLIC void exponentials(const double *x, double *out, int64_t n) { exp_into(x, out, n); }

PUBLIC double log_excess_of(double best, double log_fall, int64_t loss) {
    return log_excess(best, log_fall, loss);
}

// Products of every row with those of a basis: equal rows have equal bits.
PUBLIC void products(const double *rows, int64_t count, int64_t d, const double *basis, int64_t k,
                     double *out) {
    for (int64_t t = 0; t < count; ++t) dot_rows(basis, rows + t * d, k, d, out + t * k);
}
