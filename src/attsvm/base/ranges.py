"""Ranges of arguments that the command line and the estimators share."""

LONGEST_STEP = 1e100
"""The longest step that any training takes: weights of thousands of them still have a squared norm
that is a number.
"""
