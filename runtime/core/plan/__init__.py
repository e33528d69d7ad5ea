"""What an engine will be, before anything is loaded.

Owns: sizes and buckets, the memory plan, kernel choice, the plan of the engine.
Never: loads weights or compiles.
"""
