"""Flags of other servers, and keywords of the offline engine.

Owns: the tables of SGLang's and other servers' flags, what becomes of each, and how keywords become a config.
Never: decides what one of our own flags means.
"""
