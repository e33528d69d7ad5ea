"""`Engine`: the same engine, inside the caller's process.

Owns: the offline engine, its event loop's thread, its runs, scores and weights.
Never: is imported by a server.
"""
