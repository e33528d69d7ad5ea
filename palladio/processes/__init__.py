"""Processes and what they start with.

Owns: children of a command, signals, modules that are hidden or kept out.
Never: knows what a child is for.
"""
