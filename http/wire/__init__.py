"""JSON on the wire: request bodies, their fields, and errors.

Owns: the request models of each route, the verdict on every foreign field, reading a body within its limits, error
bodies.
Never: talks to the engine.
"""
