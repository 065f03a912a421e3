"""Model configs in Transformers' own format, shipped as data; `qwen_export.checkpoint.load_config` finds them by name."""
