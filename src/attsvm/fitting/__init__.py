"""The stages of a fit: pool, train jointly, select, compare. The estimator in :mod:`attsvm.sklearn`
runs them in this order.
"""

LONGEST_STEP = 1e100
"""The longest step that any training takes: weights of thousands of them still have a squared norm
that is a number.
"""
