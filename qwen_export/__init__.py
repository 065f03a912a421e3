"""Export dense qwen3_5 vision-language checkpoints to standard-operator ONNX packages."""

__version__ = "0.1.0"
