"""The story: a checkpoint goes in, an audited package of standard-only graphs comes out.

Open the checkpoint, check that it can give what is asked for, stage a package beside its place, trace each component's
graph, stream the weights that its bindings name, write the manifest, audit, swap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from qwen_export.contract import COMPONENTS, DECODER, TEXT
from qwen_export.errors import UsageError
from qwen_export.package import ExportResult, open_package
from qwen_export.package.extend import component_files, keep_files
from qwen_export.package.graphs import DECODE_GRAPH, data_file, graph_file, save_graph
from qwen_export.package.manifest import ABSENT, ComponentRecord, Manifest, current_versions
from qwen_export.package.sources import Source, check_components, check_fit, open_source
from qwen_export.package.stage import Staging, staged
from qwen_export.package.write import Stages, complete
from qwen_export.patches import check_upstream
from qwen_export.recipe import Recipe
from qwen_export.tracing import build_graph
from qwen_export.weights import Progress, plan_layout

DEFAULT_RECIPE = Recipe()


def export_vlm(
    checkpoint: str | Path,
    output: str | Path,
    *,
    recipe: Recipe = DEFAULT_RECIPE,
    revision: str | None = None,
    components: Iterable[str] | None = None,
    graph_only: bool = False,
    overwrite: bool = False,
    allow_not_finite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a vision-language model: vision encoder, embedding and decoder.

    Args:
        checkpoint: folder or hub id; with `graph_only` also a config file or the name of a config of ours.
        output: package folder to make.
        components: only these; by default all three.
        graph_only: write the graphs without weight data; `bind` adds it.
        overwrite: replace a package that is there already.
        allow_not_finite: keep weights with NaN or infinity (also from a cast) and list them in the manifest.
        progress: told the steps, and bytes while weights are written.

    Raises:
        QwenExportError: with one sentence for the user. Nothing is left at `output` then, or the earlier package.
    """
    source = open_source(checkpoint, revision=revision, graph_only=graph_only)
    chosen = tuple(COMPONENTS if components is None else components)
    if TEXT in chosen:
        raise UsageError("The text-only graph is a package of its own: use export_text, or `qwen-export text`.")
    return _export(source, Path(output), chosen, recipe, overwrite, allow_not_finite, Stages(progress))


def export_text(
    checkpoint: str | Path,
    output: str | Path,
    *,
    recipe: Recipe = DEFAULT_RECIPE,
    revision: str | None = None,
    graph_only: bool = False,
    overwrite: bool = False,
    allow_not_finite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export the language model alone, as one graph that takes token ids. Arguments as in `export_vlm`."""
    source = open_source(checkpoint, revision=revision, graph_only=graph_only)
    return _export(source, Path(output), (TEXT,), recipe, overwrite, allow_not_finite, Stages(progress))


def export_component(
    component: str,
    checkpoint: str | Path,
    package: str | Path,
    *,
    recipe: Recipe | None = None,
    revision: str | None = None,
    allow_not_finite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export one component into a package that exists; the files of the others stay as they are.

    Args:
        component: `vision_encoder`, `embedding` or `decoder`.
        recipe: by default the package's own. Its dtype must be that of the other components.
    """
    check_upstream()
    stages = Stages(progress)
    opened = open_package(package)
    recipe = recipe or opened.recipe
    others = [name for name in opened.components if name != component]
    _check_joins(component, recipe, {name: opened.record(name).recipe.dtype for name in others})
    source = open_source(checkpoint, revision=revision, graph_only=not opened.has_weights)
    check_fit(opened, source.config, source.identity, source.name)
    source.check([component])
    with staged(opened.folder, overwrite=True, checkpoint=source.folder) as staging:
        staging.need(source.weight_bytes([component], recipe.tensor_dtype))
        kept = keep_files(staging, opened, without=component_files(opened.manifest, component))
        records = {**opened.manifest.components, component: _graphs(component, source, recipe, staging, stages)}
        draft = replace(
            opened.manifest,
            recipe=recipe if component == DECODER or not others else opened.recipe,
            components={name: records[name] for name in COMPONENTS if name in records},
            versions=current_versions(),
        )
        return complete(
            staging,
            draft,
            assets={},
            snapshot=source.snapshot,
            components=[component],
            stages=stages,
            kept=kept,
            allow_not_finite=allow_not_finite,
        )


def _export(
    source: Source,
    output: Path,
    asked: Iterable[str],
    recipe: Recipe,
    overwrite: bool,
    allow_not_finite: bool,
    stages: Stages,
) -> ExportResult:
    check_upstream()
    source.check(asked)
    components = check_components(source.config, asked)
    with staged(output, overwrite=overwrite, checkpoint=source.folder) as staging:
        staging.need(source.weight_bytes(components, recipe.tensor_dtype))
        records = {name: _graphs(name, source, recipe, staging, stages) for name in components}
        draft = Manifest(ABSENT, recipe, source.identity, records, current_versions())
        return complete(
            staging,
            draft,
            assets=source.assets,
            snapshot=source.snapshot,
            components=components,
            stages=stages,
            allow_not_finite=allow_not_finite,
        )


def _graphs(component: str, source: Source, recipe: Recipe, staging: Staging, stages: Stages) -> ComponentRecord:
    """Trace a component and save its graph or graphs; the weights follow later."""
    stages.begin("trace", component)
    built = build_graph(component, source.config, recipe)
    layout, data = plan_layout(built.bindings), data_file(component)
    graphs = {graph_file(component): built}
    if component == DECODER and recipe.decode_graph:
        graphs[DECODE_GRAPH] = build_graph(component, source.config, recipe, single_step=True)
    for path, graph in graphs.items():
        save_graph(graph.model, graph.bindings, layout, staging.folder / path, data)
    interfaces = {path: graph.contract.to_dict() for path, graph in graphs.items()}
    return ComponentRecord(interfaces, data, layout.size, recipe, built.bindings)


def _check_joins(component: str, recipe: Recipe, others: dict[str, str]) -> None:
    if component not in COMPONENTS or TEXT in others:
        raise UsageError(f"{component} cannot be put into this package; a text-only package is exported as a whole.")
    for name, dtype in others.items():
        if dtype != recipe.dtype:
            raise UsageError(
                f"The {component} would be {recipe.dtype}, but the package's {name} is {dtype}; they would not fit "
                "together. Export the whole package with `qwen-export vlm --overwrite` to change its dtype."
            )
