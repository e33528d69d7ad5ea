"""The engine at token level: start-up, and the step that schedules, executes and processes.

Owns: sizing and memory plans, kernel choice, warm-up, the step loop's body and what observes it.
Never: knows of text, HTTP or processes.
"""
