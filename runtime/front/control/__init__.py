"""The engine as a whole: its start, restarts, weights and calls that change it.

Owns: the supervisor, control calls, the switch of weights, progress of the start.
Never: knows a request.
"""
