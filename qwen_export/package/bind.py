"""Bind: give a graph-only package its weights. Needs neither torch nor wrappers nor Transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qwen_export.package.manifest import ABSENT
from qwen_export.package.open import open_package
from qwen_export.package.sources import check_fit, open_source
from qwen_export.package.stage import staged
from qwen_export.package.write import ExportResult, Stages, complete
from qwen_export.weights import Progress


def bind(
    graphs: str | Path,
    checkpoint: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    overwrite: bool = False,
    allow_not_finite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Make a package from the graphs of another one and the weights of a checkpoint.

    The result is byte for byte what an export of the checkpoint with the same graphs gives.

    Args:
        graphs: package whose graphs are taken, usually a graph-only one.
        checkpoint: folder or hub id; its config must state the same facts as the graphs' config.
        overwrite: replace a package that is at `output` already; this may be `graphs` itself.
        allow_not_finite: keep weights with NaN or infinity (also from a cast) and list them in the manifest.

    Raises:
        CheckpointError: the checkpoint does not fit the graphs.
    """
    stages = Stages(progress)
    package = open_package(graphs)
    source = open_source(checkpoint, revision=revision)
    check_fit(package, source.config, source.identity, source.name)
    source.check(package.components)
    with staged(Path(output), overwrite=overwrite, checkpoint=source.folder) as staging:
        for record in package.manifest.components.values():
            for path in record.graphs:
                target = staging.folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((package.folder / path).read_bytes())
        draft = replace(package.manifest, weights=ABSENT, checkpoint=source.identity, warnings=(), files={})
        return complete(
            staging,
            draft,
            assets=source.assets,
            snapshot=source.snapshot,
            components=package.components,
            stages=stages,
            allow_not_finite=allow_not_finite,
        )
