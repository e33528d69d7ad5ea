"""Compiled programs.

Owns: building them in order and in threads, the cache and the folder of exported ones, what they need of memory.
Never: says what a program computes.
"""
