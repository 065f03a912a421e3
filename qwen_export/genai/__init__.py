"""ONNX Runtime GenAI: the files by which it opens a package, and the proof that it answers as `run` does.

The files are metadata: graphs and weights are those of every package. docs/genai.md says what works.
"""

from qwen_export.genai.check import check_genai
from qwen_export.genai.files import add_genai_files, genai_files
from qwen_export.genai.report import GenAICase, GenAIReport

__all__ = ["GenAICase", "GenAIReport", "add_genai_files", "check_genai", "genai_files"]
