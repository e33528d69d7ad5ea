"""One request on the engine, seen from HTTP.

Owns: what every route needs (Context, ModelFacts, Call), sampling fields, running prompts, gathering choices,
log-probabilities, scores of pairs of texts, server-sent events.
Never: knows of chat, files or batches.
"""
