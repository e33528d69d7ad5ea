"""One server process, from its command line.

Owns: the start of a server, and of a host that only follows.
Never: handles a request.
"""
