"""Verify: how far every tensor of a package is from the truth, and a verdict by named limits."""

from qwen_export.verify.outcome import VerifyReport
from qwen_export.verify.verify import verify

__all__ = ["VerifyReport", "verify"]
