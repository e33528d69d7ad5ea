"""Load for a server that speaks OpenAI's API, and what came of it.

Owns: the client that measures, workloads, sweeps, tables and plots.
Never: starts a server, or imports what a server is made of.
"""
