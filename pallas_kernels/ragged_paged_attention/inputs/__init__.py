"""The inputs of every attention backend.

Owns: the layout of pages, the metadata of a batch, plans of a step, shapes.
Never: imports a backend.
"""
