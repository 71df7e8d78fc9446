// What this processor can do, and what this library was made of.
#include "attsvm.h"

#if defined(__x86_64__)
#include <cpuid.h>
// AVX2 and FMA, and an operating system that keeps their registers. The compiler's own test of the
// processor answers no under zig.
PUBLIC int64_t fast_processor() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!((c & bit_FMA) && (c & bit_OSXSAVE) && (c & bit_AVX))) return 0;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) ? 1 : 0;
}
#else
PUBLIC int64_t fast_processor() { return 0; }
#endif

PUBLIC const char *sources() { return ATTSVM_SOURCES; }

// Size of each struct and the offsets of its fields, by which the mirrors in Python are checked.
PUBLIC int64_t layout(int64_t *out) {
    int64_t count = 0;
#define FIELD(type, name) out[count++] = offsetof(type, name)
    out[count++] = sizeof(Programme);
    FIELD(Programme, m), FIELD(Programme, n), FIELD(Programme, dx), FIELD(Programme, dz);
    FIELD(Programme, D), FIELD(Programme, Z), FIELD(Programme, b), FIELD(Programme, cap);
    FIELD(Programme, offsets), FIELD(Programme, free_sign);
    out[count++] = sizeof(ActiveSet);
    FIELD(ActiveSet, m), FIELD(ActiveSet, rank), FIELD(ActiveSet, count), FIELD(ActiveSet, factor);
    FIELD(ActiveSet, work), FIELD(ActiveSet, rows), FIELD(ActiveSet, side);
    out[count++] = sizeof(Batch);
    FIELD(Batch, dx), FIELD(Batch, dz), FIELD(Batch, D), FIELD(Batch, Z), FIELD(Batch, b);
    FIELD(Batch, offsets), FIELD(Batch, instances), FIELD(Batch, start), FIELD(Batch, slack);
    FIELD(Batch, W);
    FIELD(Batch, dual), FIELD(Batch, values), FIELD(Batch, figures), FIELD(Batch, outcome);
    FIELD(Batch, steps);
    out[count++] = sizeof(Interior);
    FIELD(Interior, box), FIELD(Interior, systems), FIELD(Interior, idle);
    FIELD(Interior, pattern), FIELD(Interior, tried), FIELD(Interior, patience);
    FIELD(Interior, tau), FIELD(Interior, gap), FIELD(Interior, seconds);
    FIELD(Interior, cost), FIELD(Interior, lam), FIELD(Interior, s), FIELD(Interior, best_lam);
    FIELD(Interior, w), FIELD(Interior, u), FIELD(Interior, v), FIELD(Interior, zu);
    FIELD(Interior, zv), FIELD(Interior, best_w);
    out[count++] = sizeof(Blas);
    FIELD(Blas, gemm), FIELD(Blas, potrf), FIELD(Blas, syrk), FIELD(Blas, trsm);
    FIELD(Blas, getrf), FIELD(Blas, getrs);
    out[count++] = sizeof(Gauge);
    FIELD(Gauge, lift), FIELD(Gauge, p), FIELD(Gauge, degree), FIELD(Gauge, svd);
    out[count++] = sizeof(Iterate);
    FIELD(Iterate, W), FIELD(Iterate, lam), FIELD(Iterate, room), FIELD(Iterate, t);
    FIELD(Iterate, target), FIELD(Iterate, enough);
    FIELD(Iterate, error), FIELD(Iterate, most), FIELD(Iterate, warm);
    FIELD(Iterate, easy);
    FIELD(Iterate, iterations), FIELD(Iterate, exchanges);
    out[count++] = sizeof(Sequences);
    FIELD(Sequences, n), FIELD(Sequences, N), FIELD(Sequences, d_k), FIELD(Sequences, d_x);
    FIELD(Sequences, d_z), FIELD(Sequences, chunks), FIELD(Sequences, longest);
    FIELD(Sequences, keys), FIELD(Sequences, queries), FIELD(Sequences, labels);
    FIELD(Sequences, values), FIELD(Sequences, means), FIELD(Sequences, zero);
    FIELD(Sequences, start), FIELD(Sequences, bounds);
    out[count++] = sizeof(Rule);
    FIELD(Rule, kind), FIELD(Rule, normalize), FIELD(Rule, keeps), FIELD(Rule, lr);
    FIELD(Rule, eps), FIELD(Rule, inverse_whole), FIELD(Rule, inverse_rest);
    FIELD(Rule, forward_whole), FIELD(Rule, forward_rest);
    out[count++] = sizeof(Descent);
    FIELD(Descent, data), FIELD(Descent, loss), FIELD(Descent, width), FIELD(Descent, inner);
    FIELD(Descent, stacked), FIELD(Descent, stopped_at), FIELD(Descent, penalty);
    FIELD(Descent, beyond), FIELD(Descent, factor), FIELD(Descent, rules), FIELD(Descent, W);
    FIELD(Descent, moved);
    FIELD(Descent, K), FIELD(Descent, Q), FIELD(Descent, dual), FIELD(Descent, head_dual);
    FIELD(Descent, head), FIELD(Descent, score), FIELD(Descent, shift), FIELD(Descent, best);
    FIELD(Descent, winner), FIELD(Descent, margin), FIELD(Descent, mass);
    FIELD(Descent, log_norm), FIELD(Descent, value), FIELD(Descent, room);
    out[count++] = sizeof(Corpus);
    FIELD(Corpus, K), FIELD(Corpus, classes), FIELD(Corpus, tokens), FIELD(Corpus, sentences);
    FIELD(Corpus, token), FIELD(Corpus, log_count), FIELD(Corpus, start);
    FIELD(Corpus, run_start), FIELD(Corpus, query), FIELD(Corpus, own), FIELD(Corpus, label);
    FIELD(Corpus, log_weight), FIELD(Corpus, gram), FIELD(Corpus, orthonormal);
    out[count++] = sizeof(Course);
    FIELD(Course, rule), FIELD(Course, loss), FIELD(Course, textbook), FIELD(Course, watch);
    FIELD(Course, together), FIELD(Course, decay), FIELD(Course, factor), FIELD(Course, lr);
    FIELD(Course, lr_output), FIELD(Course, floor), FIELD(Course, count), FIELD(Course, marks);
    FIELD(Course, A), FIELD(Course, scores), FIELD(Course, B), FIELD(Course, values);
    FIELD(Course, looks), FIELD(Course, outputs), FIELD(Course, ends);
#undef FIELD
    return count;
}
