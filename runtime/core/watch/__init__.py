"""What looks on while the engine steps.

Owns: observers of steps, the step log, timelines, explanations, the self-check of the prefix cache.
Never: changes what a step computes.
"""
