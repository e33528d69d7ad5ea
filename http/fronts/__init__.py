"""Several front processes of one server: what they ask each other, so that each answers for all.

Owns: which requests another front answers, and how they get there and back.
Never: starts processes, or knows what a route does.
"""
