"""Optimiser steps and training measured beside torch's, on this machine.

One module per job (:mod:`~attsvm.bench.step`, :mod:`~attsvm.bench.train`) and what they share:
records and tables.
"""
