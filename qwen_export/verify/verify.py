"""The story of a verdict: hash, reference, run the package on every case, compare, judge, and find the place."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from qwen_export.checkpoint import open_snapshot
from qwen_export.contract import FLOAT32, VISION_ENCODER
from qwen_export.errors import UsageError
from qwen_export.package import Package, open_package
from qwen_export.verify.bisect import find_faults
from qwen_export.verify.candidate import NOT_FINITE, Candidate
from qwen_export.verify.cases import SUITES, Case
from qwen_export.verify.collect import CASE, Said, collect, source_digest
from qwen_export.verify.graph_runners import Arrays, open_runner
from qwen_export.verify.identity import check_identity
from qwen_export.verify.outcome import FreeRun, VerifyReport, versions_here
from qwen_export.verify.parity import Ledger
from qwen_export.verify.reference_file import PEER, TRUTH, Reference
from qwen_export.verify.report import write_report
from qwen_export.verify.verdict import judge


class Progress(Protocol):
    """Is told what is being done."""

    def stage(self, name: str) -> None: ...


def verify(
    package: str | Path,
    *,
    checkpoint: str | Path | None = None,
    suite: str = "quick",
    provider: str = "cpu",
    reference: Path | None = None,
    save_reference: Path | None = None,
    report: Path | None = None,
    bisect: bool = False,
    deep: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Compare a package with Transformers, tensor by tensor.

    Args:
        checkpoint: folder or hub id of the checkpoint the package came from; not needed with `reference`.
        suite: `quick` or `full`.
        provider: `cpu` or `cuda`.
        reference: a file that `save_reference` wrote; neither torch nor the checkpoint is needed then.
        report: where to write the HTML page.
        bisect: show every operation, not only those that leave the truth.
        deep: hash every source tensor instead of a sample.

    Raises:
        QwenExportError: nothing could be judged. A verdict, good or bad, is in the report.
    """
    started = time.perf_counter()
    said: Said = progress.stage if progress is not None else _quiet
    opened = open_package(package)
    if (checkpoint is None) == (reference is None):
        raise UsageError("Give one of --checkpoint DIR and --reference FILE to compare with.")
    if suite not in SUITES:
        raise UsageError(f"Unknown suite {suite!r}. Known: {', '.join(SUITES)}.")
    candidate = Candidate(opened, open_runner(opened, provider))
    snapshot = None if checkpoint is None else open_snapshot(checkpoint)
    said("hashes")
    identity = check_identity(opened, snapshot, deep=deep)
    with tempfile.TemporaryDirectory(prefix="qwen-export-verify-") as scratch:
        path = reference or save_reference or Path(scratch) / "reference.npz"
        if snapshot is not None:
            collect(opened, snapshot, path, suite=suite, said=said)
        found = _judged(candidate, path, said)
    result = replace(
        found,
        checkpoint=None if snapshot is None else snapshot.folder,
        identity=identity,
        show_bisect=bisect,
        seconds=time.perf_counter() - started,
        report=report,
    )
    if report is not None:
        write_report(result, report)
    return result


def _judged(candidate: Candidate, path: Path, said: Said) -> VerifyReport:
    """Compare a package with a reference file, and judge."""
    package, reference = candidate.package, Reference(path)
    try:
        _check_reference(package, reference)
        ledger, free_runs, not_run = compare(candidate, reference, said)
        faults = None
        if reference.has_inside:
            faults = find_faults(package, reference, said)
        else:
            not_run["operations"] = "the reference does not hold the inside of the layers"
        facts = dict(reference.facts)
    finally:
        reference.close()
    return VerifyReport(
        package=package.folder,
        suite=facts["suite"],
        dtype=package.recipe.dtype,
        computed_by=candidate.runner.label,
        reference=facts,
        versions=versions_here(package),
        checks=judge(ledger, faults, half=package.recipe.tensor_dtype != FLOAT32),
        ledger=ledger,
        free_runs=free_runs,
        not_run=not_run,
        bisect=faults,
    )


def compare(candidate: Candidate, reference: Reference, said: Said) -> tuple[Ledger, list[FreeRun], dict[str, str]]:
    """Run the package on every case of a reference and measure. Also gives the cases that were not run, and why.

    The vision encoder is done with all cases before the decoder is opened: one component in memory at a time.
    """
    ledger = Ledger(candidate.recipe.tolerances)
    free_runs: list[FreeRun] = []
    not_run: dict[str, str] = dict(reference.facts["not_run"])
    cases = [_stored_case(reference, name) for name in reference.cases]
    features: dict[str, np.ndarray] = {}
    if candidate.has(VISION_ENCODER):
        for case in (case for case in cases if case.media):
            said(f"package, vision encoder: {case.name}")
            got = candidate.encode(case)
            features[case.name] = got["image_features"]
            _note_all(ledger, reference, case, got)
        candidate.runner.close(VISION_ENCODER)
    for index, case in enumerate(cases):
        reason = candidate.too_long(case)
        if reason:
            not_run[case.name] = reason
            continue
        said(f"package: {case.name}, {index + 1} of {len(cases)}")
        given = features.get(case.name)
        if case.media and given is None:
            given = reference.get(case.name, TRUTH, "image_features").astype(candidate.dtype)
        got = candidate.run(case, given, lambda name, case=case: reference.get(case.name, TRUTH, name))  # type: ignore[misc]
        _note_all(ledger, reference, case, got)
        if "step_logits" in got:
            free_runs.append(_free_run(reference, case, got))
    return ledger, free_runs, not_run


def _note_all(ledger: Ledger, reference: Reference, case: Case, got: Arrays) -> None:
    columns = got.pop("logits_columns", None)
    positions = got.pop("positions", None)
    if positions is not None:
        real = np.pad(case.mask.astype(bool), ((0, 0), (0, case.steps)), constant_values=True)
        if not np.array_equal(positions[:, real], reference.get(case.name, TRUTH, "positions")[:, real]):
            ledger.wrong_positions.append(case.name)
    for name, ours in got.items():
        if name.startswith(NOT_FINITE):
            ledger.note_not_finite(case, int(name.removeprefix(NOT_FINITE)), int(ours))
            continue
        truth = reference.get(case.name, TRUTH, name)
        peer = reference.get(case.name, PEER, name)
        at = case
        if name == "logits" and columns is not None:
            truth, peer = truth[:, columns], peer[:, columns]
            at = replace(case, positions=tuple(case.positions[i] for i in columns))
        ledger.note(at, name, ours, truth, peer)


def _free_run(reference: Reference, case: Case, got: Arrays) -> FreeRun:
    """How long the package's own greedy choice is the truth's."""
    tokens = reference.get(case.name, TRUTH, "tokens")
    margins = reference.get(case.name, TRUTH, "margins")

    def chosen(side: str | None) -> np.ndarray:
        if side is None:
            first, rest = got["logits"], got["step_logits"]
        else:
            first, rest = (reference.get(case.name, side, name) for name in ("logits", "step_logits"))
        return np.concatenate([first[:, -1:], rest[:, :-1]], axis=1).astype(np.float32).argmax(-1)

    differs = chosen(None) != tokens
    peer = chosen(PEER) != tokens
    lead = float(margins[differs].max()) if differs.any() else 0.0
    return FreeRun(case.name, tokens.shape[1], _same_until(differs), _same_until(peer), lead)


def _same_until(differs: np.ndarray) -> int:
    """Steps until the first row chooses another token."""
    steps = np.flatnonzero(differs.any(axis=0))
    return int(steps[0]) if len(steps) else differs.shape[1]


def _stored_case(reference: Reference, name: str) -> Case:
    return Case.from_arrays({key: reference.get(name, CASE, key) for key in reference.names(name, CASE)})


def _check_reference(package: Package, reference: Reference) -> None:
    if reference.facts["source"] != source_digest(package):
        raise UsageError(
            f"{reference.path} was made for another checkpoint or dtype than {package.folder} "
            f"({package.recipe.dtype}). Make one with --checkpoint DIR --save-reference FILE."
        )


def _quiet(name: str) -> None:
    pass
