"""A judge of the solvers' verdicts that shares no code with them.

* :mod:`judge.dyadic`, :mod:`judge.lengths`, :mod:`judge.farkas`, :mod:`judge.least`: float64
  numbers as integers, norms between two fractions, feasibility decided and proved, the exact
  solution.
* :mod:`judge.exact`: what is wrong with a solution.
* :mod:`judge.kinds`: hard programmes by kind and seed.
* :mod:`judge.run`: many of them judged, and what came out.

To judge a programme takes about a millisecond.
"""
