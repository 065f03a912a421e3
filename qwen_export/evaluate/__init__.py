"""Ask real questions: the AI2D protocol for a package and for the original, side by side."""

from qwen_export.evaluate.ai2d import Ai2d, Question
from qwen_export.evaluate.answers import Answerer, Reply, System, package_system
from qwen_export.evaluate.evaluation import Step, evaluate, rescore
from qwen_export.evaluate.genai_answers import genai_system
from qwen_export.evaluate.reference_answers import reference_system
from qwen_export.evaluate.selection import select
from qwen_export.evaluate.summary import Summary, summarise

__all__ = [
    "Ai2d",
    "Answerer",
    "Question",
    "Reply",
    "Step",
    "Summary",
    "System",
    "evaluate",
    "genai_system",
    "package_system",
    "reference_system",
    "rescore",
    "select",
    "summarise",
]
