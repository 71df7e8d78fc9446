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
    FIELD(Batch, W), FIELD(Batch, dual), FIELD(Batch, values), FIELD(Batch, figures);
    FIELD(Batch, outcome), FIELD(Batch, steps);
    out[count++] = sizeof(Interior);
    FIELD(Interior, box), FIELD(Interior, systems), FIELD(Interior, idle), FIELD(Interior, pattern);
    FIELD(Interior, tried), FIELD(Interior, patience), FIELD(Interior, tau), FIELD(Interior, gap);
    FIELD(Interior, seconds), FIELD(Interior, cost), FIELD(Interior, lam), FIELD(Interior, s);
    FIELD(Interior, best_lam), FIELD(Interior, w), FIELD(Interior, u), FIELD(Interior, v);
    FIELD(Interior, zu), FIELD(Interior, zv), FIELD(Interior, best_w);
    out[count++] = sizeof(Blas);
    FIELD(Blas, gemm), FIELD(Blas, potrf), FIELD(Blas, syrk), FIELD(Blas, trsm), FIELD(Blas, getrf);
    FIELD(Blas, getrs);
    out[count++] = sizeof(Gauge);
    FIELD(Gauge, lift), FIELD(Gauge, p), FIELD(Gauge, degree), FIELD(Gauge, svd);
    out[count++] = sizeof(Iterate);
    FIELD(Iterate, W), FIELD(Iterate, lam), FIELD(Iterate, room), FIELD(Iterate, t);
    FIELD(Iterate, target), FIELD(Iterate, enough), FIELD(Iterate, error), FIELD(Iterate, most);
    FIELD(Iterate, warm), FIELD(Iterate, easy), FIELD(Iterate, iterations);
    FIELD(Iterate, exchanges);
    out[count++] = sizeof(SequenceArrays);
    FIELD(SequenceArrays, n), FIELD(SequenceArrays, N), FIELD(SequenceArrays, d_k);
    FIELD(SequenceArrays, d_x), FIELD(SequenceArrays, d_z), FIELD(SequenceArrays, chunks);
    FIELD(SequenceArrays, longest), FIELD(SequenceArrays, keys), FIELD(SequenceArrays, queries);
    FIELD(SequenceArrays, labels), FIELD(SequenceArrays, values), FIELD(SequenceArrays, means);
    FIELD(SequenceArrays, is_zero), FIELD(SequenceArrays, start);
    FIELD(SequenceArrays, chunk_start);
    out[count++] = sizeof(ParameterRule);
    FIELD(ParameterRule, kind), FIELD(ParameterRule, normalize), FIELD(ParameterRule, keeps_dual);
    FIELD(ParameterRule, lr), FIELD(ParameterRule, eps), FIELD(ParameterRule, inverse_integer);
    FIELD(ParameterRule, inverse_fraction), FIELD(ParameterRule, forward_integer), FIELD(ParameterRule, forward_fraction);
    out[count++] = sizeof(DescentRun);
    FIELD(DescentRun, data), FIELD(DescentRun, loss), FIELD(DescentRun, head_width);
    FIELD(DescentRun, inner), FIELD(DescentRun, stacked), FIELD(DescentRun, stopped_at);
    FIELD(DescentRun, penalty), FIELD(DescentRun, best_loss_excess);
    FIELD(DescentRun, polyak_factor), FIELD(DescentRun, rules), FIELD(DescentRun, W);
    FIELD(DescentRun, moved_queries), FIELD(DescentRun, K), FIELD(DescentRun, Q);
    FIELD(DescentRun, dual), FIELD(DescentRun, head_dual), FIELD(DescentRun, head);
    FIELD(DescentRun, token_score), FIELD(DescentRun, intercept_score);
    FIELD(DescentRun, best_score), FIELD(DescentRun, winner), FIELD(DescentRun, margin);
    FIELD(DescentRun, softmax_sum), FIELD(DescentRun, log_gradient_norm);
    FIELD(DescentRun, mean_loss), FIELD(DescentRun, workspace);
    out[count++] = sizeof(Corpus);
    FIELD(Corpus, K), FIELD(Corpus, classes), FIELD(Corpus, tokens), FIELD(Corpus, sentences);
    FIELD(Corpus, token), FIELD(Corpus, log_count), FIELD(Corpus, start), FIELD(Corpus, run_start);
    FIELD(Corpus, query), FIELD(Corpus, winner), FIELD(Corpus, label), FIELD(Corpus, log_weight);
    FIELD(Corpus, gram), FIELD(Corpus, orthonormal);
    out[count++] = sizeof(SentenceDescent);
    FIELD(SentenceDescent, rule), FIELD(SentenceDescent, loss), FIELD(SentenceDescent, textbook);
    FIELD(SentenceDescent, counts_rises), FIELD(SentenceDescent, joint_norm);
    FIELD(SentenceDescent, decay), FIELD(SentenceDescent, polyak_factor);
    FIELD(SentenceDescent, lr), FIELD(SentenceDescent, lr_output), FIELD(SentenceDescent, floor);
    FIELD(SentenceDescent, count), FIELD(SentenceDescent, record_steps), FIELD(SentenceDescent, A);
    FIELD(SentenceDescent, scores), FIELD(SentenceDescent, B), FIELD(SentenceDescent, values);
    FIELD(SentenceDescent, A_records), FIELD(SentenceDescent, B_records);
    FIELD(SentenceDescent, ends);
#undef FIELD
    return count;
}
