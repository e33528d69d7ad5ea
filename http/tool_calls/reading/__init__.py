"""What formats of tool calls share to read one, piece by piece.

Owns: the reader, values in JSON, Python and types of a schema, what comes out.
Never: knows one model's format.
"""
