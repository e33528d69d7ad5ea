"""From a config to an engine that is ready.

Owns: the order of the start, warm-up, compiling ahead of time, hosts that only follow, the installation's check.
Never: runs a step for a request.
"""
