"""Train a very small qwen3_5 checkpoint that really answers questions about pictures."""
