"""What formats of tool calls share to write the grammar of a call.

Owns: Lark's rules, grammars of values and of calls.
Never: reads a call.
"""
