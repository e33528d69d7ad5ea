"""Trials of kernels: each runs once on this device beside the reference before a program uses it.

Owns: the cases of each op, how results are compared, verdicts and the key that they are kept under.
Never: chooses a backend, or builds a program of the engine.
"""
