// One sentence of a next-token model, and gradients, gaps and steps of all of them.
//
// Logits are read relative to the heaviest token, the leader, so that
//
//     D_j = s_j + log m_j - (s_l + log m_l) <= 0    phi_j = exp(D_j) / Z    Z = sum_j exp(D_j)
//     h_j = r . (u_j - u_l)                         r = dL / d o, u_j the row of the value table
//     dL / ds_j = exp(top) (Q_j - exp(D_j) sum_i Q_i / Z) / Z,   Q_j = exp(D_j - top) h_j
//
// with top the largest D_j of a rival with h_j != 0: numbers of order one, and a factor of any size
// that is kept as a logarithm. The leader's derivative is minus the sum of the others. The output's
// residual is treated alike: r = exp(R) r' with r'_y = -sum_{v != y} r'_v, never p_y - 1.
//
// Weights are kept in coordinates of the vocabulary: W = W_0 + sum A_qv e_v e_q^T and
// W_ov = W_0 + sum B_xv 1_v e_x^T. With the Gram matrix Gamma of the embeddings, scores move by
// Gamma C Gamma when A moves by C, logits by Gamma F when B moves by F.
#include "attsvm.h"
#include "lanes.hpp"
#include "vector_math.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace {

constexpr double SMALL = 1e-8;      // below it three terms of a series are exact to the last digit
constexpr double FARTHEST = 1e300;  // scores after a longer step would not be numbers
enum Losses : int64_t { CROSS_ENTROPY = 0, SQUARED = 1, SQUARED_SOFTMAX = 2, LOG_MASS = 3 };
enum StepRules : int64_t { NORMALIZED = 0, PLAIN = 1, POLYAK = 2 };

// The sentences of one run, numbers counted over all tokens, and room for what is found of them.
struct Run {
    const Corpus &c;
    int64_t first, count, K, classes;
    double *D, *S, *h, *coefficients;  // by token, of the run
    double *below;                     // by token
    double *gaps, *signs, *rate, *slope;  // by sentence
    double *rows, *out, *line;            // (sentences, classes) residuals; (classes)
    double *C, *half, *M, *F, *MF;        // (K, K) three times, (K, classes) twice
    double *log_p, *p;                    // (K, classes) of the rows of the value table
    int64_t size;

    Run(const Corpus &corpus, int64_t r, double *room)
        : c(corpus), first(corpus.run_start[r]), count(corpus.run_start[r + 1] - first),
          K(corpus.K), classes(corpus.classes) {
        double *next = room;
        auto take = [&next](int64_t n) {
            double *here = next;
            next += n;
            return here;
        };
        D = take(c.tokens), S = take(c.tokens), h = take(c.tokens);
        coefficients = take(c.tokens), below = take(c.tokens);
        gaps = take(c.sentences), signs = take(c.sentences);
        rate = take(c.sentences), slope = take(c.sentences);
        rows = take(c.sentences * classes), out = take(classes), line = take(classes);
        C = take(K * K), half = take(K * K), M = take(K * K);
        F = take(K * classes), MF = take(K * classes);
        log_p = take(K * classes), p = take(K * classes);
        size = next - room;
    }
    int64_t base() const { return c.start[first]; }
};

// Tokens of a sentence: numbers of the first and the one past the last, in the run.
struct Span {
    int64_t lo, hi;
    Span(const Run &run, int64_t n)
        : lo(run.c.start[run.first + n] - run.base()),
          hi(run.c.start[run.first + n + 1] - run.base()) {}
};

// Writes r' with p - 1_y = exp(result) r', and -log p_y to `surprise`.
double residual(const double *o, int64_t y, double *r, double *x, int64_t classes,
                double &surprise) {
    double R = -INF;
    for (int64_t v = 0; v < classes; ++v)
        if (v != y) R = std::max(R, o[v]);
    R -= o[y];
    surprise = 0.0;
    if (std::isinf(R)) {  // a vocabulary of one token
        std::fill(r, r + classes, 0.0);
        return -INF;
    }
    for (int64_t v = 0; v < classes; ++v) x[v] = o[v] - o[y] - R;
    x[y] = -1e3;
    exp_into(x, r, classes);
    r[y] = 0.0;
    double total = 0.0;
    for (int64_t v = 0; v < classes; ++v) total += r[v];
    r[y] = -total;
    surprise =
        R > 0.0 ? R + std::log(std::exp(-R) + total) : std::log1p(std::exp(R) * total);
    return R - surprise;
}

// Writes D and S = exp(D); returns the leader, and Z.
int64_t attend(const Run &run, const double *s, Span at, double &Z) {
    const int64_t *token = run.c.token + run.base();
    const double *log_count = run.c.log_count + run.base();
    int64_t leader = at.lo;
    for (int64_t j = at.lo; j < at.hi; ++j) {
        run.D[j] = s[token[j]] + log_count[j];
        if (run.D[j] > run.D[leader]) leader = j;
    }
    const double top = run.D[leader];
    for (int64_t j = at.lo; j < at.hi; ++j) run.D[j] -= top;
    exp_into(run.D + at.lo, run.S + at.lo, at.hi - at.lo);
    Z = 0.0;
    for (int64_t j = at.lo; j < at.hi; ++j) Z += run.S[j];
    return leader;
}

// out = sum_j phi_j u_j
void mix(const Run &run, const double *values, Span at, double Z) {
    const int64_t *token = run.c.token + run.base();
    std::fill(run.out, run.out + run.classes, 0.0);
    for (int64_t j = at.lo; j < at.hi; ++j)
        axpy(run.out, run.S[j] / Z, values + token[j] * run.classes, run.classes);
}

// Writes coefficients with dL/ds = exp(top) times them for h; returns top, -inf where there is no
// gradient.
double rivals(const Run &run, Span at, int64_t leader, double Z) {
    const double *D = run.D, *S = run.S, *h = run.h;
    double *c = run.coefficients, top = -INF;
    for (int64_t j = at.lo; j < at.hi; ++j)
        if (j != leader && h[j] != 0.0) top = std::max(top, D[j]);
    if (top == -INF) {
        std::fill(c + at.lo, c + at.hi, 0.0);
        return top;
    }
    const double lift = top > -600.0 ? std::exp(-top) : 0.0;
    double total = 0.0, rest = 0.0;
    for (int64_t j = at.lo; j < at.hi; ++j) {
        c[j] = 0.0;
        if (j != leader && h[j] != 0.0)
            c[j] = (lift > 0.0 ? S[j] * lift : std::exp(D[j] - top)) * h[j];
        total += c[j];
    }
    total /= Z;
    for (int64_t j = at.lo; j < at.hi; ++j)
        if (j != leader) {
            c[j] = (c[j] - S[j] * total) / Z;
            rest += c[j];
        }
    c[leader] = -rest;
    return top;
}

// The gradient of -log phi_winner: every other token's derivative is its own mass.
double mass_gradient(const Run &run, Span at, int64_t winner, double Z) {
    double top = -INF, rest = 0.0;
    for (int64_t j = at.lo; j < at.hi; ++j)
        if (j != winner) top = std::max(top, run.D[j]);
    for (int64_t j = at.lo; j < at.hi; ++j) {
        run.coefficients[j] = j != winner ? std::exp(run.D[j] - top) / Z : 0.0;
        rest += run.coefficients[j];
    }
    run.coefficients[winner] = -rest;
    return top;
}

// log |2 (1 - o_y)| and the sign of 1 - o_y = sum_j phi_j (1 - u_jy), without cancellation where
// the leader has 1.
double log_missing(const Run &run, Span at, int64_t leader, double lead, double Z, double top,
                   double &sign) {
    double near = 0.0;
    if (top > -INF) {
        for (int64_t j = at.lo; j < at.hi; ++j)
            if (j != leader && run.h[j] != 0.0) near += std::exp(run.D[j] - top) * run.h[j];
        near /= Z;
    }
    const double base = 1.0 - lead;  // 1 - o_y = base + sum_j phi_j h_j
    const double missing =
        base == 0.0 ? near : base + (top > -INF ? std::exp(top) * near : 0.0);
    sign = missing >= 0.0 ? 1.0 : -1.0;
    const double log = missing != 0.0 ? std::log(2.0 * std::fabs(missing)) : -INF;
    return base == 0.0 && missing != 0.0 ? top + log : log;
}

// Writes the coefficients and the residual of sentence n; returns the logarithm of the factor that
// makes them dL/ds, and of dL/do to `log_slope`. S holds the attention on return.
double sentence_gradient(const Run &run, const double *s, const double *values, int64_t n,
                         int64_t loss, double &log_slope) {
    const Span at(run, n);
    const int64_t *token = run.c.token + run.base(), y = run.c.label[run.first + n];
    const int64_t classes = run.classes;
    double *r = run.rows + n * classes, Z, scale;
    const int64_t leader = attend(run, s, at, Z);
    log_slope = 0.0;
    if (loss == LOG_MASS)
        scale = mass_gradient(run, at, run.c.winner[run.first + n] - run.base(), Z);
    else {
        mix(run, values, at, Z);
        const double *lead = values + token[leader] * classes;
        if (loss == SQUARED) {
            double sign;
            for (int64_t j = at.lo; j < at.hi; ++j)
                run.h[j] = lead[y] - values[token[j] * classes + y];
            std::fill(r, r + classes, 0.0);
            scale = rivals(run, at, leader, Z);
            log_slope = log_missing(run, at, leader, lead[y], Z, scale, sign);
            r[y] = -sign;
            for (int64_t j = at.lo; j < at.hi; ++j) run.coefficients[j] *= sign;
        } else {
            double surprise;
            log_slope = residual(run.out, y, r, run.line, classes, surprise);
            if (loss == SQUARED_SOFTMAX)
                log_slope += LN2 + log_slope + std::log(-r[y]) - surprise;
            const double level = dot(r, lead, classes);
            for (int64_t j = at.lo; j < at.hi; ++j)
                run.h[j] = j != leader ? dot(r, values + token[j] * classes, classes) - level : 0.0;
            scale = rivals(run, at, leader, Z);
        }
        scale += log_slope;
    }
    for (int64_t j = at.lo; j < at.hi; ++j) run.S[j] /= Z;
    return scale;
}

// The cross-entropy gradient as a textbook writes it: p - 1_y and phi_j (g_j - sum_i phi_i g_i),
// every difference rounded.
void textbook_sentence(const Run &run, const double *s, const double *values, int64_t n) {
    const Span at(run, n);
    const int64_t *token = run.c.token + run.base(), classes = run.classes;
    double *r = run.rows + n * classes, Z, total = 0.0, mean = 0.0;
    attend(run, s, at, Z);
    mix(run, values, at, Z);
    const double highest = *std::max_element(run.out, run.out + classes);
    for (int64_t v = 0; v < classes; ++v) {
        r[v] = std::exp(run.out[v] - highest);
        total += r[v];
    }
    for (int64_t v = 0; v < classes; ++v) r[v] /= total;
    r[run.c.label[run.first + n]] -= 1.0;
    for (int64_t j = at.lo; j < at.hi; ++j) {
        run.S[j] /= Z;
        run.h[j] = dot(r, values + token[j] * classes, classes);
        mean += run.S[j] * run.h[j];
    }
    for (int64_t j = at.lo; j < at.hi; ++j) run.coefficients[j] = run.S[j] * (run.h[j] - mean);
}

// Writes C with the gradient of W = exp(top) sum C_qv e_v e_q^T; returns top, -inf for zero.
double gradient(const Run &run, const double *scores, const double *values, int64_t loss,
                bool textbook, double *C) {
    const int64_t *token = run.c.token + run.base(), *query = run.c.query + run.first;
    double top = -INF;
    for (int64_t n = 0; n < run.count; ++n) {
        const double *s = scores + query[n] * run.K;
        run.rate[n] = run.slope[n] = 0.0;
        if (textbook)
            textbook_sentence(run, s, values, n);
        else
            run.rate[n] = sentence_gradient(run, s, values, n, loss, run.slope[n]);
        run.rate[n] += run.c.log_weight[run.first + n];
        top = std::max(top, run.rate[n]);
    }
    std::fill(C, C + run.K * run.K, 0.0);
    if (top == -INF) return top;
    for (int64_t n = 0; n < run.count; ++n) {
        if (!(run.rate[n] > top - 745.0)) continue;
        const Span at(run, n);
        const double share = std::exp(run.rate[n] - top);
        double *into = C + query[n] * run.K;
        for (int64_t j = at.lo; j < at.hi; ++j) into[token[j]] += share * run.coefficients[j];
    }
    return top;
}

// out = gram x, for x of so many columns; rows of zeros are left out.
void times(const double *gram, const double *x, double *out, int64_t K, int64_t columns) {
    std::fill(out, out + K * columns, 0.0);
    for (int64_t q = 0; q < K; ++q) {
        const double *row = x + q * columns;
        bool any = false;
        for (int64_t v = 0; v < columns; ++v) any = any || row[v] != 0.0;
        if (!any) continue;
        for (int64_t a = 0; a < K; ++a) axpy(out + a * columns, gram[a * K + q], row, columns);
    }
}

// Writes M = gram C gram and returns <C, M>.
double spread(const Run &run, int64_t r) {
    const int64_t K = run.K;
    const double *gram = run.c.gram + r * K * K;
    if (run.c.orthonormal[r])
        std::copy(run.C, run.C + K * K, run.M);
    else {
        std::fill(run.half, run.half + K * K, 0.0);
        for (int64_t q = 0; q < K; ++q)
            if (std::any_of(run.C + q * K, run.C + (q + 1) * K, [](double x) { return x != 0.0; }))
                add_rows(run.half + q * K, run.C + q * K, gram, K, K);
        times(gram, run.half, run.M, K, K);
    }
    return dot(run.C, run.M, K * K);
}

// Writes MF = gram F and returns <F, MF>.
double spread_output(const Run &run, int64_t r) {
    const int64_t size = run.K * run.classes;
    if (run.c.orthonormal[r])
        std::copy(run.F, run.F + size, run.MF);
    else
        times(run.c.gram + r * run.K * run.K, run.F, run.MF, run.K, run.classes);
    return dot(run.F, run.MF, size);
}

// q expm1(step) without overflow before underflow.
double grown(double log_q, double q, double step) {
    return step < 30.0 ? q * std::expm1(step) : std::exp(log_q + step) - q;
}

double log_of_log1p(double top, double total) {
    if (top == -INF) return top;
    const double size = top + std::log(total);
    if (size < -40.0) return size;
    return size < 40.0 ? std::log(std::log1p(std::exp(size))) : std::log(size);
}

// Logarithms of the softmax of every row of values, and the softmax.
void probabilities(const Run &run, const double *values) {
    for (int64_t a = 0; a < run.K; ++a) {
        const double *row = values + a * run.classes;
        const double highest = *std::max_element(row, row + run.classes);
        double total = 0.0;
        for (int64_t v = 0; v < run.classes; ++v) total += std::exp(row[v] - highest);
        for (int64_t v = 0; v < run.classes; ++v) {
            run.log_p[a * run.classes + v] = row[v] - highest - std::log(total);
            run.p[a * run.classes + v] = std::exp(run.log_p[a * run.classes + v]);
        }
    }
}

double log_size(double x) { return x != 0.0 ? std::log(std::fabs(x)) : -INF; }

// The loss of a sentence is sign exp(result) above what it is with all attention on its winner.
// With delta_v = sum_j phi_j [(u_jv - u_jy) - (u_*v - u_*y)] and q the output's probabilities at
// the floor, the cross-entropy's gap is log1p(sum_{v != y} q_v expm1(delta_v)); where delta is
// small its factor stays a logarithm.
double sentence_gap(const Run &run, const double *s, const double *values, int64_t n, int64_t loss,
                    double &sign) {
    const Span at(run, n);
    const int64_t *token = run.c.token + run.base(), classes = run.classes;
    const int64_t winner = run.c.winner[run.first + n] - run.base();
    const int64_t y = run.c.label[run.first + n];
    const double *log_count = run.c.log_count + run.base();
    double top = -INF, total = 0.0;
    sign = 1.0;
    for (int64_t j = at.lo; j < at.hi; ++j) {
        run.D[j] = s[token[j]] + log_count[j] - s[token[winner]] - log_count[winner];
        if (j != winner) top = std::max(top, run.D[j]);
    }
    if (top == -INF) return top;
    for (int64_t j = at.lo; j < at.hi; ++j)
        run.below[j] = std::min(run.D[j] - top, 0.0);  // not read at the winner
    exp_into(run.below + at.lo, run.S + at.lo, at.hi - at.lo);
    for (int64_t j = at.lo; j < at.hi; ++j)
        if (j != winner) total += run.S[j];
    if (loss == LOG_MASS) return log_of_log1p(top, total);
    // phi_j = S_j exp(top) / (1 + total exp(top))
    const double log_factor =
        top - (top < 0.0 ? std::log1p(total * std::exp(top))
                         : top + std::log(std::exp(-top) + total));
    const double factor = std::exp(log_factor);
    const double *star = values + token[winner] * classes;
    double *delta = run.out;  // of order one: the true one is factor times it
    std::fill(delta, delta + classes, 0.0);
    if (loss == SQUARED) {  // (1 - o)^2 - (1 - u)^2 = (u - o) (2 - o - u)
        for (int64_t j = at.lo; j < at.hi; ++j)
            if (j != winner) delta[y] += run.S[j] * (values[token[j] * classes + y] - star[y]);
        if (star[y] == 1.0)
            return delta[y] != 0.0 ? 2.0 * (log_factor + log_size(delta[y])) : -INF;
        const double fall = -delta[y] * (2.0 * (1.0 - star[y]) - factor * delta[y]);
        sign = fall >= 0.0 ? 1.0 : -1.0;
        return log_factor + log_size(fall);
    }
    for (int64_t j = at.lo; j < at.hi; ++j) {
        if (j == winner) continue;
        const double *row = values + token[j] * classes, level = row[y] - star[y];
        for (int64_t v = 0; v < classes; ++v) delta[v] += run.S[j] * (row[v] - star[v] - level);
    }
    delta[y] = 0.0;
    double extreme = 0.0, scale = 0.0, gap;
    for (int64_t v = 0; v < classes; ++v) extreme = std::max(extreme, std::fabs(delta[v]));
    const double *q = run.p + token[winner] * classes;
    const double *log_q = run.log_p + token[winner] * classes;
    total = 0.0;
    if (factor * extreme < SMALL) {  // x + x^2/2 + x^3/6 of expm1, over the factor
        for (int64_t v = 0; v < classes; ++v) {
            const double step = factor * delta[v];
            total += q[v] * delta[v] * (1.0 + 0.5 * step + step * step / 6.0);
        }
        const double growth = factor * total;
        gap = total * (1.0 - 0.5 * growth + growth * growth / 3.0);
        scale = log_factor;
    } else {
        for (int64_t v = 0; v < classes; ++v) total += grown(log_q[v], q[v], factor * delta[v]);
        gap = std::log1p(total);
    }
    // p falls to p exp(-gap): (1 - p e^-g)^2 - (1 - p)^2 = p (1 - e^-g) (2 (1 - p) + p (1 - e^-g))
    if (loss == SQUARED_SOFTMAX) {
        double rest = 0.0;
        for (int64_t v = 0; v < classes; ++v)
            if (v != y) rest += q[v];
        const double full = gap * std::exp(scale);  // the gap with its factor
        const double shrink =
            std::fabs(full) > SMALL ? -std::expm1(-full) : full - 0.5 * full * full;
        gap *= (full != 0.0 ? shrink / full : 1.0) * q[y] * (2.0 * rest + q[y] * shrink);
    }
    sign = gap >= 0.0 ? 1.0 : -1.0;
    return scale + log_size(gap);
}

// The weighted loss is sign exp(result) above its floor.
double excess(const Run &run, const double *scores, const double *values, int64_t loss,
              double &sign) {
    const int64_t *query = run.c.query + run.first;
    double top = -INF, total = 0.0;
    sign = 1.0;
    for (int64_t n = 0; n < run.count; ++n) {
        run.gaps[n] = sentence_gap(run, scores + query[n] * run.K, values, n, loss, run.signs[n]) +
                      run.c.log_weight[run.first + n];
        top = std::max(top, run.gaps[n]);
    }
    if (top == -INF) return top;
    for (int64_t n = 0; n < run.count; ++n) total += run.signs[n] * std::exp(run.gaps[n] - top);
    sign = total >= 0.0 ? 1.0 : -1.0;
    return top + log_size(total);
}

// Writes F with the gradient of the output matrix on single tokens; returns top.
double output_gradient(const Run &run, const double *U) {
    const int64_t *x = run.c.query + run.first, classes = run.classes;
    double top = -INF, surprise;
    for (int64_t k = 0; k < run.count; ++k) {
        run.rate[k] = residual(U + x[k] * classes, run.c.label[run.first + k],
                               run.rows + k * classes, run.line, classes, surprise) +
                      run.c.log_weight[run.first + k];
        top = std::max(top, run.rate[k]);
    }
    std::fill(run.F, run.F + run.K * classes, 0.0);
    for (int64_t k = 0; k < run.count; ++k)
        if (run.rate[k] > top - 745.0)
            axpy(run.F + x[k] * classes, std::exp(run.rate[k] - top), run.rows + k * classes,
                 classes);
    return top;
}

// The same under attention, from what gradient() left.
double attended_gradient(const Run &run) {
    const int64_t *token = run.c.token + run.base(), classes = run.classes;
    double top = -INF;
    for (int64_t n = 0; n < run.count; ++n) {
        run.slope[n] += run.c.log_weight[run.first + n];
        top = std::max(top, run.slope[n]);
    }
    std::fill(run.F, run.F + run.K * classes, 0.0);
    for (int64_t n = 0; n < run.count; ++n) {
        if (!(run.slope[n] > top - 745.0)) continue;
        const Span at(run, n);
        const double share = std::exp(run.slope[n] - top);
        for (int64_t j = at.lo; j < at.hi; ++j)
            axpy(run.F + token[j] * classes, share * run.S[j], run.rows + n * classes, classes);
    }
    return top;
}

// The weighted cross-entropy of single tokens: positive terms, so no cancellation.
double output_loss(const Run &run, const double *U) {
    const int64_t *x = run.c.query + run.first, classes = run.classes;
    double total = 0.0, surprise;
    for (int64_t k = 0; k < run.count; ++k) {
        residual(U + x[k] * classes, run.c.label[run.first + k], run.rows + k * classes, run.line,
                 classes, surprise);
        total += std::exp(run.c.log_weight[run.first + k]) * surprise;
    }
    return total;
}

// What the gradient's coefficients are multiplied by; `size` is their norm, exp(top) their factor.
double length(const SentenceDescent &c, int64_t r, int64_t t, double top, double size, double sign,
              double log_gap) {
    const double fall = c.decay > 0.0 ? std::pow((double)t + 1.0, c.decay) : 1.0;
    const double rate = c.lr[r] / fall;
    if (c.rule == NORMALIZED) return rate / size;
    if (c.rule == PLAIN) return rate * std::exp(top);
    if (c.floor[r] != 0.0) {
        const double gap = sign * std::exp(log_gap) - c.floor[r];
        log_gap = gap > 0.0 ? std::log(gap) : -INF;
    } else if (sign < 0.0)
        return 0.0;
    return rate * std::exp(log_gap - top - 2.0 * std::log(size)) / c.polyak_factor;
}

// Writes the looks that are due before step t, from number `mark` on; returns that of the next.
int64_t record(const SentenceDescent &c, int64_t r, const double *weights, double *looks, int64_t size,
               int64_t mark, int64_t t) {
    for (; mark < c.count && c.record_steps[mark] <= t; ++mark)
        std::copy(weights, weights + size, looks + (r * c.count + mark) * size);
    return mark;
}

// Counts a rise of the loss.
double watched(int64_t *end, int64_t t, double before, double now) {
    if (now > before) {
        ++end[1];
        end[2] = t;
    }
    return now;
}

void descend_by(double *coordinates, double *products, const double *C, const double *M,
                double step, int64_t size) {
    axpy(coordinates, -step, C, size);
    axpy(products, -step, M, size);
}

void attention_run(const Corpus &corpus, const SentenceDescent &c, int64_t r, double *room) {
    const Run run(corpus, r, room);
    const int64_t size = run.K * run.K, last = c.record_steps[c.count - 1];
    double *A = c.A + r * size, *s = c.scores + r * size, before = INF;
    const double *values = c.values + r * run.K * run.classes;
    int64_t mark = 0, *end = c.ends + 3 * r;
    probabilities(run, values);
    for (int64_t t = 0; t <= last; ++t) {
        mark = record(c, r, A, c.A_records, size, mark, t);
        if (mark == c.count) break;
        double sign = 1.0, log_gap = -INF;
        if (c.counts_rises || c.rule == POLYAK) {
            log_gap = excess(run, s, values, c.loss, sign);
            if (c.counts_rises) before = watched(end, t, before, sign > 0.0 ? log_gap : -INF);
        }
        const double top = gradient(run, s, values, c.loss, c.textbook, run.C);
        const double square = top > -INF ? spread(run, r) : 0.0;
        const double norm = std::sqrt(square);
        const double step = square > 0.0 ? length(c, r, t, top, norm, sign, log_gap) : INF;
        if (!(step * norm < FARTHEST)) {
            end[0] = t;
            break;
        }
        descend_by(A, s, run.C, run.M, step, size);
    }
    record(c, r, A, c.A_records, size, mark, last);
}

void output_run(const Corpus &corpus, const SentenceDescent &c, int64_t r, double *room) {
    const Run run(corpus, r, room);
    const int64_t size = run.K * run.classes, last = c.record_steps[c.count - 1];
    double *B = c.B + r * size, *U = c.values + r * size, before = INF;
    int64_t mark = 0, *end = c.ends + 3 * r;
    for (int64_t t = 0; t <= last; ++t) {
        mark = record(c, r, B, c.B_records, size, mark, t);
        if (mark == c.count) break;
        if (c.counts_rises) before = watched(end, t, before, output_loss(run, U));
        const double top = output_gradient(run, U);
        const double square = top > -INF ? spread_output(run, r) : 0.0;
        if (!(square > 0.0)) {
            end[0] = t;
            break;
        }
        descend_by(B, U, run.F, run.MF, length(c, r, t, top, std::sqrt(square), 1.0, 0.0), size);
    }
    record(c, r, B, c.B_records, size, mark, last);
}

// Both matrices at once, by normalised steps, each with its own norm or together with one.
void joint_run(const Corpus &corpus, const SentenceDescent &c, int64_t r, double *room) {
    const Run run(corpus, r, room);
    const int64_t size = run.K * run.K, of_output = run.K * run.classes;
    const int64_t last = c.record_steps[c.count - 1];
    double *A = c.A + r * size, *s = c.scores + r * size;
    double *B = c.B + r * of_output, *U = c.values + r * of_output;
    int64_t mark = 0;
    for (int64_t t = 0; t <= last; ++t) {
        record(c, r, B, c.B_records, of_output, mark, t);
        mark = record(c, r, A, c.A_records, size, mark, t);
        if (mark == c.count) break;
        const double top = gradient(run, s, U, CROSS_ENTROPY, false, run.C);
        const double norm = top > -INF ? std::sqrt(spread(run, r)) : 0.0;
        const double top_output = attended_gradient(run);
        const double norm_output = top_output > -INF ? std::sqrt(spread_output(run, r)) : 0.0;
        if (norm == 0.0 && norm_output == 0.0) {
            c.ends[3 * r] = t;
            break;
        }
        double step = norm > 0.0 ? 1.0 / norm : 0.0;
        double step_output = norm_output > 0.0 ? 1.0 / norm_output : 0.0;
        if (c.joint_norm) {  // one norm for both: each is divided by it at its own scale
            const double larger = std::max(norm > 0.0 ? top + std::log(norm) : -INF,
                                           norm_output > 0.0 ? top_output + std::log(norm_output)
                                                             : -INF);
            step = norm > 0.0 ? std::exp(top - larger) : 0.0;
            step_output = norm_output > 0.0 ? std::exp(top_output - larger) : 0.0;
            const double both = std::hypot(step * norm, step_output * norm_output);
            step /= both;
            step_output /= both;
        }
        const double fade = std::pow((double)t + 1.0, -c.decay);
        if (norm > 0.0) descend_by(A, s, run.C, run.M, step * c.lr[r] * fade, size);
        if (norm_output > 0.0)
            descend_by(B, U, run.F, run.MF, step_output * c.lr_output[r] * fade, of_output);
    }
    record(c, r, A, c.A_records, size, mark, last);
    record(c, r, B, c.B_records, of_output, mark, last);
}

}  // namespace

// How many numbers the room of a run has.
PUBLIC int64_t sentences_room(const Corpus *corpus) {
    double none;
    return Run(*corpus, 0, &none).size;
}

// The query-key matrix of the runs from `begin` to before `end`, under tables of values.
PUBLIC void train_attention(const Corpus *corpus, const SentenceDescent *course, int64_t begin, int64_t end,
                            double *room) {
    for (int64_t r = begin; r < end; ++r) attention_run(*corpus, *course, r, room);
}

// The output matrix, on sentences of one token: their queries.
PUBLIC void train_output(const Corpus *corpus, const SentenceDescent *course, int64_t begin, int64_t end,
                         double *room) {
    for (int64_t r = begin; r < end; ++r) output_run(*corpus, *course, r, room);
}

PUBLIC void train_both(const Corpus *corpus, const SentenceDescent *course, int64_t begin, int64_t end,
                       double *room) {
    for (int64_t r = begin; r < end; ++r) joint_run(*corpus, *course, r, room);
}

// Gradients and gaps at scores (looks, runs, K, K) under values (1 or looks, runs, K, classes);
// gaps are (2, looks, runs): signs and logarithms.
PUBLIC void sentence_gradients(const Corpus *corpus, int64_t loss, int64_t textbook, int64_t looks,
                    int64_t runs, int64_t tables, const double *scores, const double *values,
                    double *C, double *tops, double *gaps, double *room) {
    for (int64_t k = 0; k < looks; ++k)
        for (int64_t r = 0; r < runs; ++r) {
            const Run run(*corpus, r, room);
            const int64_t at = k * runs + r;
            const double *s = scores + at * run.K * run.K;
            const double *u = values + (std::min(k, tables - 1) * runs + r) * run.K * run.classes;
            probabilities(run, u);
            gaps[looks * runs + at] = excess(run, s, u, loss, gaps[at]);
            tops[at] = gradient(run, s, u, loss, textbook, C + at * run.K * run.K);
        }
}

// (looks, runs): the loss of single tokens under tables (looks, runs, K, classes).
PUBLIC void output_losses(const Corpus *corpus, int64_t looks, int64_t runs, const double *tables,
                          double *loss, double *room) {
    for (int64_t at = 0; at < looks * runs; ++at) {
        const Run run(*corpus, at % runs, room);
        loss[at] = output_loss(run, tables + at * run.K * run.classes);
    }
}
