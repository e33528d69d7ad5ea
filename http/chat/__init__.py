"""A conversation on the engine, whichever API asked for it.

Owns: ChatRun and what it is made of: reasoning and tool plans, structured output, the parts of an answer.
Never: knows the wire format of one API: routes, anthropic and responses translate.
"""
