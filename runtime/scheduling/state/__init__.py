"""Requests that the scheduler knows, and their columns.

Owns: the mutable request, the columns of slots, bounds of pages, pages of windows, nodes of the prefix tree.
Never: decides who runs, or allocates a page.
"""
