"""What genai-check says: one line per case, findings on the files, remarks on GenAI's own preparation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from qwen_export.package import Finding


@dataclass(frozen=True)
class GenAICase:
    """One prompt, answered by GenAI and by `run`."""

    name: str
    prompt_tokens: int
    expected: tuple[int, ...]
    """Tokens of `run`."""
    found: tuple[int, ...]
    """Tokens of GenAI."""
    logit_error: float
    """Largest absolute difference of the logits up to and with the first different token; nan if there were none."""
    error: str = ""
    """Why there is no answer, if GenAI refused."""

    @property
    def same(self) -> bool:
        """Whether every token is equal."""
        return not self.error and self.expected == self.found

    def to_dict(self) -> dict[str, Any]:
        """JSON form, which has no nan."""
        error = None if math.isnan(self.logit_error) else self.logit_error
        return {**asdict(self), "logit_error": error, "same": self.same}

    def __str__(self) -> str:
        head = f"{self.name}: {self.prompt_tokens} prompt tokens, "
        if self.error:
            return f"{head}GenAI refused: {self.error}"
        if self.same:
            return f"{head}{len(self.found)} new tokens equal, logits within {self.logit_error:.1e}"
        step = next(
            (i for i, pair in enumerate(zip(self.expected, self.found, strict=False)) if pair[0] != pair[1]),
            min(len(self.expected), len(self.found)),
        )
        theirs, ours = (
            str(tokens[step]) if step < len(tokens) else "the end" for tokens in (self.found, self.expected)
        )
        return f"{head}new token {step + 1} is {theirs}, run has {ours}; logits before differ by {self.logit_error:.1e}"


@dataclass(frozen=True)
class GenAIReport:
    """The verdict on a package in GenAI.

    Attributes:
        version: of onnxruntime-genai.
        findings: faults of the files; any fails the check.
        cases: prefill and decode against `run`; any difference fails the check.
        notes: where GenAI's own tokenizer, template and processor differ from Transformers'; the helper avoids them.
    """

    version: str
    provider: str
    findings: tuple[Finding, ...]
    cases: tuple[GenAICase, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the package passes."""
        return not self.findings and bool(self.cases) and all(case.same for case in self.cases)

    @property
    def headline(self) -> str:
        """The first line of the printed report."""
        where = f"GenAI {self.version}, {self.provider}"
        if self.ok:
            return f"{where}: {len(self.cases)} prompts answered as by run"
        if self.findings and not self.cases:
            return f"{where}: not opened, {len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
        wrong = sum(not case.same for case in self.cases)
        return f"{where}: {wrong} of {len(self.cases)} prompts differ, {len(self.findings)} findings"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "ok": self.ok,
            "headline": self.headline,
            "version": self.version,
            "provider": self.provider,
            "findings": [asdict(finding) for finding in self.findings],
            "cases": [case.to_dict() for case in self.cases],
            "notes": list(self.notes),
        }
