"""What a step computes, as functions of arrays.

Owns: forward and decode steps, verification of drafts, pooling.
Never: is compiled here, or knows buckets.
"""
