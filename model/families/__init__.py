"""Model families: one file each maps config.json to layer specs, and names the tensors of its checkpoints."""
