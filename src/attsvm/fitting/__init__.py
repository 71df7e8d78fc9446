"""The stages of a fit: pool, train jointly, select, compare. The estimator in :mod:`attsvm.sklearn`
runs them in this order.
"""
