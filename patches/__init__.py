"""What we re-spell of someone else's code, and the guard that it is still the code we read.

No function of Transformers or torch is replaced: every idea fits the first rung, a wrapper around upstream's modules.
What remains is arithmetic spelled again in the wrappers; `respelled.py` lists each function with the hash of its
source.
"""

from qwen_export.patches.respelled import RESPELLED, Respelled, check_upstream, fingerprint

__all__ = ["RESPELLED", "Respelled", "check_upstream", "fingerprint"]
