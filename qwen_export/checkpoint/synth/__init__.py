"""Synthetic checkpoints in the official layout, for any config: `plan` counts, `synthesise` writes."""

from qwen_export.checkpoint.synth.plan import Plan, plan
from qwen_export.checkpoint.synth.write import synthesise

__all__ = ["Plan", "plan", "synthesise"]
