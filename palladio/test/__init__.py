"""What the first cells of SGLang's tutorials import from `sglang.test`."""
