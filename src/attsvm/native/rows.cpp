#include "attsvm.h"
#include "lanes.hpp"

#include <cmath>
#include <cstring>

// v_c = <a_c, W> for the rows of the sequences from `first` to before `last`.
PUBLIC void values(const Programme *p, int64_t first, int64_t last, const double *W, double *moved,
                   double *v) {
    for (int64_t i = first; i < last; ++i) {
        for (int64_t r = 0; r < p->dx; ++r) moved[r] = dot(W + r * p->dz, p->Z + i * p->dz, p->dz);
        for (int64_t c = p->offsets[i]; c < p->offsets[i + 1]; ++c)
            v[c] = dot(p->D + c * p->dx, moved, p->dx);
    }
}

// W += sum_c lambda_c a_c over the same rows.
PUBLIC void adjoint(const Programme *p, int64_t first, int64_t last, const double *lam,
                    double *moved, double *W) {
    for (int64_t i = first; i < last; ++i) {
        bool any = false;
        std::memset(moved, 0, sizeof(double) * p->dx);
        for (int64_t c = p->offsets[i]; c < p->offsets[i + 1]; ++c)
            if (lam[c] != 0.0) {
                any = true;
                axpy(moved, lam[c], p->D + c * p->dx, p->dx);
            }
        if (!any) continue;
        for (int64_t r = 0; r < p->dx; ++r)
            if (moved[r] != 0.0) axpy(W + r * p->dz, moved[r], p->Z + i * p->dz, p->dz);
    }
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

// The exponent e of every row with 2^-e |row| in [1/2, 1), also where squares leave float64; 0 of a
// row of zeros.
PUBLIC void row_exponents(const double *rows, int64_t count, int64_t d, int64_t *exponent) {
    for (int64_t c = 0; c < count; ++c) {
        const double *row = rows + c * d;
        double square = dot(row, row, d), unit = 1.0;
        int shift = 0, found = 0;
        if (!(square > 1e-280 && square < 1e280)) {
            for (int64_t k = 0; k < d; ++k) unit = std::fmax(k ? unit : 0.0, std::fabs(row[k]));
            if (unit == 0.0) {
                exponent[c] = 0;
                continue;
            }
            std::frexp(unit, &shift);
            square = 0.0;
            for (int64_t k = 0; k < d; ++k) {
                const double near = std::ldexp(row[k], -shift);
                square += near * near;
            }
        }
        std::frexp(std::sqrt(square), &found);
        exponent[c] = shift + found;
    }
}
