"""Raw checkpoint keys to canonical ones: every prefix in use for this family."""

from __future__ import annotations

from qwen_export.checkpoint.inventory import HEAD_KEY, LANGUAGE_PREFIX, MTP_PREFIX, VISUAL_PREFIX

_PREFIXES = (
    # Canonical already: the official vision-language layout.
    (LANGUAGE_PREFIX, LANGUAGE_PREFIX),
    (VISUAL_PREFIX, VISUAL_PREFIX),
    (HEAD_KEY, HEAD_KEY),
    (MTP_PREFIX, MTP_PREFIX),
    # The language model as a whole causal model of its own inside the vision-language one.
    ("language_model.model.", LANGUAGE_PREFIX),
    ("language_model." + HEAD_KEY, HEAD_KEY),
    ("language_model." + MTP_PREFIX, MTP_PREFIX),
    # The vision-language model saved without its head.
    ("language_model.", LANGUAGE_PREFIX),
    ("visual.", VISUAL_PREFIX),
    # Text-only, with and without head.
    ("model.embed_tokens.", LANGUAGE_PREFIX + "embed_tokens."),
    ("model.layers.", LANGUAGE_PREFIX + "layers."),
    ("model.norm.", LANGUAGE_PREFIX + "norm."),
    ("embed_tokens.", LANGUAGE_PREFIX + "embed_tokens."),
    ("layers.", LANGUAGE_PREFIX + "layers."),
    ("norm.", LANGUAGE_PREFIX + "norm."),
)


def canonical_key(raw_key: str) -> str:
    """The key in the official vision-language layout; a key of no known prefix stays as it is."""
    for prefix, canonical in _PREFIXES:
        if raw_key.startswith(prefix):
            return canonical + raw_key.removeprefix(prefix)
    return raw_key
