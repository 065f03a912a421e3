"""Upstream patches: the few reversible replacements of upstream code that are active only while tracing."""
