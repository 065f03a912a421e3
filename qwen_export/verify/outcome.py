"""What a comparison came to: everything the report, the command line and `--json` show."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from qwen_export import __version__
from qwen_export.package import Package
from qwen_export.verify.bisect import Bisection
from qwen_export.verify.identity import Identity
from qwen_export.verify.parity import Ledger, Tensor, pooled
from qwen_export.verify.verdict import Check

NOTHING_HASHED = Identity(0, 0, 0)


@dataclass(frozen=True)
class FreeRun:
    """A case decoded freely: the greedy tokens of package and peer against the truth's."""

    case: str
    steps: int
    same: int
    """Steps before the package first chooses another token; all of them if it never does."""
    peer_same: int
    """The same for Transformers in the package's dtype."""
    lead: float
    """The truth's lead of its token over the second best, where the package chose another one."""


@dataclass(frozen=True)
class VerifyReport:
    """A verdict with its evidence."""

    package: Path
    suite: str
    dtype: str
    computed_by: str
    reference: dict[str, Any]
    versions: dict[str, str]
    checks: list[Check]
    ledger: Ledger
    free_runs: list[FreeRun]
    not_run: dict[str, str]
    bisect: Bisection | None
    """Every operation with the truth's inputs; None where the reference does not have them."""
    identity: Identity = NOTHING_HASHED
    checkpoint: Path | None = None
    show_bisect: bool = False
    """Show all operations, not only those at fault."""
    seconds: float = 0.0
    report: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether every check and every hash held."""
        return self.identity.passed and all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        """Checks that did not hold."""
        return [check for check in self.checks if not check.passed]

    @property
    def scattered(self) -> list[Check]:
        """Checks above their limit that were taken for scatter."""
        return [check for check in self.checks if check.scattered]

    @property
    def cases(self) -> list[str]:
        """Cases that were run."""
        return list(dict.fromkeys(case for _, case in self.ledger.entries))

    def rows(self) -> list[dict[str, Any]]:
        """Pooled figures of every tensor, in the order of computation."""
        return [_row(tensor, self.ledger) for tensor in self.ledger.tensors()]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "passed": self.passed,
            "package": str(self.package),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "suite": self.suite,
            "dtype": self.dtype,
            "computed_by": self.computed_by,
            "reference": {key: value for key, value in self.reference.items() if key != "not_run"},
            "versions": self.versions,
            "hashes": {
                "files": self.identity.files_checked,
                "tensors": self.identity.tensors_checked,
                "findings": self.identity.findings,
            },
            "checks": [{**vars(check), "scattered": check.scattered} for check in self.checks],
            "tensors": self.rows(),
            "cases": [
                {"case": case, **_figures(pooled(e for (_, c), e in self.ledger.entries.items() if c == case))}
                for case in self.cases
            ],
            "free_runs": [vars(run) for run in self.free_runs],
            "not_run": self.not_run,
            "bisect": None if self.bisect is None else self.bisect.to_dict(),
            "seconds": round(self.seconds, 3),
            "report": None if self.report is None else str(self.report),
        }


def _row(tensor: Tensor, ledger: Ledger) -> dict[str, Any]:
    return {"tensor": str(tensor), "kind": tensor.kind, "layer": tensor.layer, **_figures(pooled(ledger.of(tensor)))}


def _figures(errors: Any) -> dict[str, Any]:
    return {
        "numbers": errors.count,
        "max_abs": errors.max_abs,
        "relative_rms": errors.relative_rms,
        "peer_max_abs": errors.peer_max_abs,
        "peer_relative_rms": errors.peer_relative_rms,
        "error_ratio": errors.ratio,
        "outside_share": errors.outside_share,
        "not_finite": errors.not_finite,
    }


def versions_here(package: Package) -> dict[str, str]:
    """Versions that compared, and those that wrote the package."""
    found = {"qwen_export": __version__, "python": platform.python_version()}
    for name in ("onnxruntime", "onnxruntime-gpu", "onnx", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    written = {f"written with {name}": version for name, version in package.manifest.versions.items()}
    return found | written
