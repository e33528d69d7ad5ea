"""What became of one request, explained.

Owns: the explanation and the fields of its timeline.
Never: keeps records.
"""
