"""Folders and files that are for one user alone.

Owns: making them with the right mode, refusing links in them, removing what a folder of reports holds too much of.
Never: knows what is kept in them.
"""
