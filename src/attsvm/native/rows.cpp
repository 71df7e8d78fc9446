#include "attsvm.h"
#include "lanes.hpp"

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
