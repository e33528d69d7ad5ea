"""What the dashboard draws.

Owns: the history of the last hour, its series, the thread that samples it, the overview.
Never: is asked by a client of the models.
"""
