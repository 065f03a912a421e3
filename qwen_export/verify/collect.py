"""Make a reference: run truth and peer over a suite and write what they give. Needs torch and Transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from qwen_export.checkpoint import Snapshot
from qwen_export.contract import FLOAT32
from qwen_export.errors import InputError, PackageError, UsageError
from qwen_export.package import Package
from qwen_export.verify.cases import Case, CaseMaker, needs_vision, plans
from qwen_export.verify.reference_file import PEER, TRUTH, ReferenceWriter

CASE = "case"
"""Side of a reference file that holds the case itself."""
FLOAT64 = "float64"
_LIBRARIES = ("torch", "transformers", "accelerate", "numpy", "pillow")

Said = Callable[[str], None]


def collect(
    package: Package,
    snapshot: Snapshot,
    path: Path,
    *,
    suite: str,
    said: Said,
) -> None:
    """Write a reference for a package.

    Args:
        said: told what is being computed.

    Raises:
        UsageError: torch, accelerate or a fitting Transformers is missing, or the file cannot be written.
    """
    try:
        from qwen_export.verify.bisect_truth import note_inside
        from qwen_export.verify.reference import ReferenceModel, run_case
        from qwen_export.verify.reference_weights import stored_rounding
    except ImportError as error:
        raise UsageError(
            f"The reference needs torch, accelerate and Transformers ({error}): pip install 'qwen-export[export]'. "
            "Or compare with a saved one: --reference FILE."
        ) from None
    dtype = package.recipe.tensor_dtype
    rounded = stored_rounding({name: package.record(name).bindings for name in package.components})
    cases, not_run = draw_cases(package, suite)
    with ReferenceWriter(path) as writer:
        for case in cases:
            for name, array in case.to_arrays().items():
                writer.add(case.name, CASE, name, array)
        truth_dtype = FLOAT64 if dtype == FLOAT32 else FLOAT32
        model = ReferenceModel(snapshot, truth_dtype, rounded)
        tokens = {}
        for index, case in enumerate(cases):
            said(f"truth (Transformers, {truth_dtype}): {case.name}, {index + 1} of {len(cases)}")
            found = run_case(model, case)
            tokens[case.name] = found.get("tokens")
            for name, array in found.items():
                writer.add(case.name, TRUTH, name, array)
        said("truth: inside the layers")
        try:
            note_inside(model, writer, package)
        except (InputError, PackageError) as error:
            not_run["operations of the vision encoder"] = str(error)
        device = str(model.device)
        del model
        model = ReferenceModel(snapshot, dtype, {})
        for index, case in enumerate(cases):
            said(f"peer (Transformers, {dtype}): {case.name}, {index + 1} of {len(cases)}")
            for name, array in run_case(model, case, tokens[case.name]).items():
                if name not in ("tokens", "margins", "positions"):
                    writer.add(case.name, PEER, name, array)
        versions = {name: metadata.version(name) for name in _LIBRARIES}
        writer.header(
            {"suite": suite, "dtype": dtype, "source": source_digest(package), "truth": truth_dtype, "device": device,
             "versions": versions, "not_run": not_run}
        )  # fmt: skip


def draw_cases(package: Package, suite: str) -> tuple[list[Case], dict[str, str]]:
    """The cases of a suite that this model can take, and why the others are not run."""
    maker = CaseMaker(package.config, package.folder)
    text_only = package.config.vision is None or "text" in package.components
    cases, not_run = [], {}
    for plan, seed in plans(suite):
        name = f"{plan.name}#{seed}"
        if needs_vision(plan) and text_only:
            not_run[name] = "the package takes text only"
            continue
        try:
            cases.append(maker.make(plan, seed))
        except (InputError, PackageError) as error:
            not_run[name] = str(error)
    return cases, not_run


def source_digest(package: Package) -> str:
    """Stands for the checkpoint bytes and the stored precision that a reference was made for."""
    checkpoint = package.manifest.checkpoint
    hashes = {key: record.sha256 for key, record in sorted(checkpoint.tensors.items())}
    text = json.dumps([checkpoint.config_sha256, hashes, package.recipe.dtype])
    return hashlib.sha256(text.encode()).hexdigest()
