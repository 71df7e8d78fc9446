// Margins of rows a_c = delta_c z_i^T that lie sequence by sequence, and sums of rows.
#pragma once
#include <cstdint>
#include <cstring>

#include "lanes.hpp"

namespace {

// v_c = <a_c, W> for the rows of the sequences from `first` to before `last`.
inline void margins_of(const double *D, const double *Z, const int64_t *offsets, int64_t first,
                       int64_t last, int64_t dx, int64_t dz, const double *W, double *moved,
                       double *v) {
    for (int64_t i = first; i < last; ++i) {
        for (int64_t r = 0; r < dx; ++r) moved[r] = dot(W + r * dz, Z + i * dz, dz);
        for (int64_t c = offsets[i]; c < offsets[i + 1]; ++c) v[c] = dot(D + c * dx, moved, dx);
    }
}

// W += sum_c lambda_c a_c over the same rows.
inline void add_rows(const double *D, const double *Z, const int64_t *offsets, int64_t first,
                     int64_t last, int64_t dx, int64_t dz, const double *lam, double *moved,
                     double *W) {
    for (int64_t i = first; i < last; ++i) {
        bool any = false;
        for (int64_t c = offsets[i]; c < offsets[i + 1]; ++c) {
            if (lam[c] == 0.0) continue;
            if (!any) std::memset(moved, 0, sizeof(double) * dx);
            any = true;
            axpy(moved, lam[c], D + c * dx, dx);
        }
        if (!any) continue;
        for (int64_t r = 0; r < dx; ++r)
            if (moved[r] != 0.0) axpy(W + r * dz, moved[r], Z + i * dz, dz);
    }
}

}  // namespace
