"""Programmes of at most some hundred rows, solved in compiled code."""
