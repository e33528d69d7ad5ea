"""The host's side of a step: arrays in, tokens out.

Owns: packing a scheduled step into one vector, rows of media, token masks, reading results and log-probabilities.
Never: calls a program.
"""
