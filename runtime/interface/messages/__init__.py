"""Messages between two processes.

Owns: the messages between front and engine, and the statistics in them.
Never: says how messages travel.
"""
