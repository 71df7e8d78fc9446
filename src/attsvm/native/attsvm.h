// The interface of the compiled core: structs of sizes and pointers, and functions on them.
// native/structs.py mirrors the structs and checks the arrays; nothing here looks at them again.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define PUBLIC extern "C" __declspec(dllexport)
#else
#define PUBLIC extern "C" __attribute__((visibility("default")))
#endif

// Rows a_c = delta_c z_i^T of sizes near one, <a_c, W> >= b_c, multipliers 0 <= lambda_c <= cap_c,
// or of any sign where free_sign is 1.
struct Programme {
    int64_t m, n, dx, dz;      // rows, sequences, sizes of a token and of a query
    const double *D;           // (m, dx) differences
    const double *Z;           // (n, dz) queries
    const double *b;           // (m) right-hand sides
    const double *cap;         // (m) upper bounds of the multipliers
    const int64_t *offsets;    // (n + 1) where the rows of each sequence begin
    const uint8_t *free_sign;  // (m) 1 for equalities
};

// The free rows of a quadratic programme on a Gram matrix, with the Cholesky factor of their block.
struct ActiveSet {
    int64_t m, rank;   // rows, how many of them can be independent
    int64_t count;     // free rows
    double *factor;    // (m, m) lower triangle of the first `count` rows, the reciprocal diagonal
    double *work;      // (4 m)
    int64_t *rows;     // (m) the free rows, in the order of the factor
    uint8_t *side;     // (m) where a multiplier is: see Side
};

// Programmes of few rows that lie end to end, and what is found of each.
struct Batch {
    int64_t dx, dz;
    const double *D, *Z, *b;   // (M, dx) differences, (N, dz) queries, (M) right-hand sides
    const int64_t *offsets;    // (N + 1) where the rows of each sequence begin
    const int64_t *instances;  // (B + 1) where the sequences of each programme begin
    const double *start;       // (M) multipliers to begin with, or null
    double slack;              // penalty of soft margins, infinite for hard ones
    double *W, *dual;          // (B, dx, dz) weights, (M) multipliers
    double *values;            // (M) margins of the weights
    double *figures;           // (B, 4) norm, gap, violation and rounding of hard margins
    int64_t *outcome, *steps;  // (B) unsettled, weights or contradiction; steps of active sets
};

// The state of interior points in l1, or with `box` in linf, of m rows and k = dx dz weights.
struct Interior {
    int64_t box, systems, idle;          // systems solved; iterations without half the gap
    int64_t pattern, tried;              // rows and entries of a vertex: the last, and those tried
    int64_t patience;                    // how many idle iterations end the method
    double tau, gap;                     // the margin of linf; the least relative gap met
    double seconds;                      // that are left, or infinite
    const double *cost;                  // (k) what an entry counts in the norm
    double *lam, *s, *best_lam;          // (m) multipliers and slacks; the best
    double *w, *u, *v, *zu, *zv;         // (k) weights, their two parts, reduced costs
    double *best_w;                      // (k)
};

// Products and factors of large matrices by SciPy's BLAS and LAPACK, in Fortran order.
struct Blas {
    void (*gemm)(const char *, const char *, const int *, const int *, const int *, const double *,
                 const double *, const int *, const double *, const int *, const double *,
                 double *, const int *);
    void (*potrf)(const char *, const int *, double *, const int *, int *);
    void (*syrk)(const char *, const char *, const int *, const int *, const double *,
                 const double *, const int *, const double *, double *, const int *);
    void (*trsm)(const char *, const char *, const char *, const char *, const int *, const int *,
                 const double *, const double *, const int *, double *, const int *);
    void (*getrf)(const int *, const int *, double *, const int *, int *, int *);
    void (*getrs)(const char *, const int *, const int *, const double *, const int *, const int *,
                  double *, const int *, int *);
};

// The function f of the splitting: ||.||^degree / degree for the gauge of p of entries, singular
// values or lengths of rows; the degree is 1, 2 (soft margins) or p.
enum Lift : int64_t { ENTRIES = 0, SINGULAR = 1, ROWS = 2 };
struct Gauge {
    int64_t lift;
    double p, degree;
    void *svd;  // dgesdd of LAPACK
};

// Where the splitting of a programme is, and what it is asked.
struct Iterate {
    double *W;                     // (dx, dz) weights
    double *lam;                   // (m) multipliers
    double *room;                  // of splitting_room numbers
    double t, target, enough;      // step of the proximal map; error aimed at, and that is enough
    double error;                  // that was reached
    int64_t most, warm, easy;      // iterations; whether W and lam are a start; see Anderson
    int64_t iterations, exchanges; // that were made; of rows in all projections
};

// v_c = <a_c, W> for the rows of the sequences from `first` to before `last`, and
// W += sum_c lambda_c a_c over them; `moved` has room for dx numbers.
PUBLIC void values(const Programme *, int64_t first, int64_t last, const double *W, double *moved,
                   double *v);
PUBLIC void adjoint(const Programme *, int64_t first, int64_t last, const double *lam,
                    double *moved, double *W);
PUBLIC void row_exponents(const double *rows, int64_t count, int64_t d, int64_t *exponent);

// The sequences of one instance as descent reads them, visible tokens end to end.
struct SequenceArrays {
    int64_t n, N, d_k, d_x, d_z;  // sequences, tokens, sizes of a key, a token and a query
    int64_t chunks, longest;      // groups of sequences whose sums are taken apart; tokens
    const double *keys;           // (N, d_k) minus the mean of their sequence
    const double *queries;        // (n, d_z)
    const double *labels;         // (n)
    const double *values;         // (N, d_x) tokens minus the mean, or null under a fixed head
    const double *means;          // (n, d_x), or null
    const uint8_t *is_zero;       // (N) whether a token is zero, or null where none is
    const int64_t *start;         // (n + 1) where each sequence begins
    const int64_t *chunk_start;   // (chunks + 1) sequence at which each chunk begins
};

// How a parameter moves along its gradient: a step of Frobenius's norm, or of mirror descent in the
// powers |y|^(integer + fraction).
enum StepKind : int64_t { STEEPEST = 0, POLYAK = 1, MIRROR = 2 };
struct ParameterRule {
    int64_t kind, normalize, keeps_dual;  // keeps_dual: it is not taken anew from the weights
    double lr, eps;
    double inverse_integer, inverse_fraction, forward_integer, forward_fraction;
};

// One run of descent: its iterate, its step rules, and the selection in every sequence.
struct DescentRun {
    const SequenceArrays *data;
    int64_t loss, head_width;             // code of the loss; trained entries of the head, or 0
    int64_t inner, stacked;               // columns of the factors, or 0; both under one norm
    int64_t stopped_at;                   // step whose gradient was zero, or -1
    double penalty;                       // of the squared weights
    double best_loss_excess;              // Polyak's: loss of the best tokens above the floor
    double polyak_factor;                 // by which its steps are divided
    ParameterRule rules[2];                    // of W or K, and of the head or Q
    double *W;                            // (d_z, d_k), the transpose of the weights
    const double *moved_queries;          // (n, d_k) queries that the weights have moved, or null
    double *K, *Q;                        // (inner, d_k) and (d_z, inner), W = Q K
    double *dual, *head_dual;             // mirror images of W and the head
    double *head;                         // (d_x + 1), the intercept last
    const double *token_score;            // (N) of a fixed head, label times score
    const double *intercept_score;        // (n) of a fixed head, label times intercept
    const double *best_score;             // (n) of the best token, for Polyak's rule
    int64_t *winner;                      // (n), counted over all tokens
    double *margin, *softmax_sum;         // (n), the sum over the winner's term
    double log_gradient_norm, mean_loss;  // written by evaluate_runs
    double *workspace;                    // of descent_room numbers
};

// Sentences of next-token problems, of all runs end to end: distinct tokens with multiplicities.
struct Corpus {
    int64_t K, classes, tokens, sentences;  // vocabulary, labels; the most of one run
    const int64_t *token;                   // (all tokens)
    const double *log_count;                // (all tokens) logarithms of multiplicities
    const int64_t *start, *run_start;       // where the tokens of a sentence begin, and the
                                            // sentences of a run
    const int64_t *query, *winner, *label;  // (all sentences), winner counted over all tokens
    const double *log_weight;               // (all sentences)
    const double *gram;                     // (runs, K, K) products of the embeddings
    const uint8_t *orthonormal;             // (runs) whether those are the identity
};

// Steps of descent on sentences, in coordinates of the vocabulary.
struct SentenceDescent {
    int64_t rule, loss, textbook;            // codes; whether the gradient is a textbook's
    int64_t counts_rises, joint_norm;        // of the loss; one norm for both matrices
    double decay, polyak_factor;             // steps shrink by (t + 1)^-decay
    const double *lr, *lr_output, *floor;    // (runs)
    int64_t count;                           // of the recorded steps
    const int64_t *record_steps;             // (count) increasing
    double *A, *scores, *B, *values;         // (runs, K, K) and (runs, K, classes): coordinates
                                             // and products with the embeddings
    double *A_records, *B_records;           // (runs, count, K, K), (runs, count, K, classes)
    int64_t *ends;                           // (runs, 3) step that could not be taken or -1, rises
                                             // of the loss, the last of them
};
