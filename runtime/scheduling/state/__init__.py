"""Requests that the scheduler knows, and their columns.

Owns: the mutable request, what its new tokens mean, the running requests, the columns of slots, bounds of pages, pages
of windows, nodes of the prefix tree.
Never: decides who runs, or allocates a page.
"""
