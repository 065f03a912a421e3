"""Model configs in Transformers' own format, shipped as data; `checkpoint.load_config` finds them by name."""
