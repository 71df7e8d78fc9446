"""The laboratory: figures and tables of the papers, a file each, computed with the public API of
:mod:`attsvm` and held against the papers' claims.

A folder is a paper, its file ``e3_three_sequences.py`` is that paper's third experiment, and
:mod:`attsvm_papers.kit` is what such a file is written with.
"""
