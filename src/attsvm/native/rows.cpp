#include "attsvm.h"
#include "rows.hpp"

#include <cmath>

PUBLIC void values(const Programme *p, int64_t first, int64_t last, const double *W, double *moved,
                   double *v) {
    margins_of(p->D, p->Z, p->offsets, first, last, p->dx, p->dz, W, moved, v);
}

PUBLIC void adjoint(const Programme *p, int64_t first, int64_t last, const double *lam,
                    double *moved, double *W) {
    add_rows(p->D, p->Z, p->offsets, first, last, p->dx, p->dz, lam, moved, W);
}

// v_c = delta_c . moved_i for the rows of every sequence, moved_i = W z_i.
PUBLIC void row_values(const double *D, const int64_t *offsets, int64_t n, int64_t dx,
                       const double *moved, double *v) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t c = offsets[i]; c < offsets[i + 1]; ++c)
            v[c] = dot(D + c * dx, moved + i * dx, dx);
}

// pulled_i = sum_c lambda_c delta_c over the rows of every sequence.
PUBLIC void pull_rows(const double *D, const int64_t *offsets, int64_t n, int64_t dx,
                      const double *lam, double *pulled) {
    std::memset(pulled, 0, sizeof(double) * n * dx);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t c = offsets[i]; c < offsets[i + 1]; ++c)
            if (lam[c] != 0.0) axpy(pulled + i * dx, lam[c], D + c * dx, dx);
}

// The exponent e of every row that brings its norm, 2^-e |row|, into [1/4, 1): that of its largest
// entry and that of its norm over it, so that no square leaves float64; 0 of a row of zeros.
PUBLIC void row_exponents(const double *rows, int64_t count, int64_t d, int64_t *exponent) {
    for (int64_t c = 0; c < count; ++c) {
        const double *row = rows + c * d;
        double largest = 0.0, sum = 0.0;
        for (int64_t k = 0; k < d; ++k)
            if (std::fabs(row[k]) > largest) largest = std::fabs(row[k]);
        exponent[c] = 0;
        if (largest == 0.0) continue;
        for (int64_t k = 0; k < d; ++k) sum += (row[k] / largest) * (row[k] / largest);
        int peak, relative;
        std::frexp(largest, &peak);
        std::frexp(std::sqrt(sum), &relative);
        exponent[c] = peak + relative;
    }
}
