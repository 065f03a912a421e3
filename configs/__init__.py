"""Model configs in Transformers' own format, shipped as data of `qwen_export.configs`."""
