"""Chat templates, rendered in a sandbox.

Owns: the renderer, its filters and limits, the check of a template.
Never: knows what a request is.
"""
