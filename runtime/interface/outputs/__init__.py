"""What the engine answers.

Owns: outputs as tokens and as text, counts and times of a request and of a step.
Never: knows what was asked for.
"""
