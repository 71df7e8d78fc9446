#include "active_set.hpp"

PUBLIC void active_set_begin(const double *G, const double *cap, const uint8_t *free_sign,
                             ActiveSet *set, double *lam) {
    begin(Quadratic{G, nullptr, cap, free_sign, lam, nullptr}, *set);
}

PUBLIC int64_t active_set(const double *G, const double *b, const double *cap,
                          const uint8_t *free_sign, ActiveSet *set, double tol, int64_t most,
                          double *lam, double *slope, int64_t *steps) {
    *steps = 0;
    return solve(Quadratic{G, b, cap, free_sign, lam, slope}, *set, tol, most, *steps);
}
