"""What a step holds.

Owns: the scheduled batch and its bucket, the rows of a step, copies of states that go with it.
Never: decides who runs.
"""
