"""Commands that write packages: vlm, text, vision-encoder, embedding, decoder, bind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwen_export.cli import options as opt
from qwen_export.cli.outcome import Outcome
from qwen_export.cli.output import notices
from qwen_export.cli.progress import ProgressDisplay
from qwen_export.cli.tables import export_summary, recipe_line
from qwen_export.errors import UsageError
from qwen_export.recipe import Recipe, read_recipe

if TYPE_CHECKING:
    from qwen_export.package import ExportResult


def _whole(verb: str, summary: str) -> Callable[..., Outcome]:
    """A command that writes a new package by a function of `qwen_export`."""

    def body(
        checkpoint: opt.Checkpoint,
        output: opt.Output,
        revision: opt.Revision = None,
        recipe: opt.RecipeFile = None,
        dtype: opt.DtypeOption = None,
        logits: opt.LogitsOption = None,
        target: opt.TargetOption = None,
        chunk_size: opt.ChunkSize = None,
        residual: opt.ResidualOption = None,
        kv_cache: opt.KvCacheOption = None,
        max_length: opt.MaxLength = None,
        decode_graph: opt.DecodeGraph = None,
        runtime: opt.RuntimeOption = opt.Runtime.ort,
        graph_only: opt.GraphOnly = False,
        overwrite: opt.Overwrite = False,
        as_json: opt.AsJson = False,
        verbose: opt.Verbose = False,
    ) -> Outcome:
        if graph_only and runtime is opt.Runtime.ort_genai:
            raise UsageError("GenAI opens no package without weights: leave out --graph-only, or run genai after bind.")
        given = opt.overrides(
            dtype=dtype, logits=logits, target=target, chunk_size=chunk_size, residual=residual, kv_cache=kv_cache,
            max_length=max_length, decode_graph=decode_graph,
        )  # fmt: skip
        effective = read_recipe(recipe).with_overrides(given)
        _announce(effective)
        import qwen_export

        with ProgressDisplay() as progress:
            result = getattr(qwen_export, verb)(
                checkpoint, output, recipe=effective, revision=revision, graph_only=graph_only, overwrite=overwrite,
                progress=progress,
            )  # fmt: skip
            if runtime is opt.Runtime.ort_genai:
                from qwen_export.genai import add_genai_files

                added = add_genai_files(result.package, progress=progress)
                result = replace(added, seconds=result.seconds | added.seconds)
        return written(result)

    body.__doc__ = summary
    return body


def _component(component: str, summary: str) -> Callable[..., Outcome]:
    """A command that exports one component again into an existing package."""

    def body(
        checkpoint: opt.Checkpoint,
        output: opt.ExistingPackage,
        revision: opt.Revision = None,
        recipe: opt.RecipeFile = None,
        logits: opt.LogitsOption = None,
        target: opt.TargetOption = None,
        chunk_size: opt.ChunkSize = None,
        residual: opt.ResidualOption = None,
        kv_cache: opt.KvCacheOption = None,
        max_length: opt.MaxLength = None,
        decode_graph: opt.DecodeGraph = None,
        as_json: opt.AsJson = False,
        verbose: opt.Verbose = False,
    ) -> Outcome:
        given = opt.overrides(
            logits=logits, target=target, chunk_size=chunk_size, residual=residual, kv_cache=kv_cache,
            max_length=max_length, decode_graph=decode_graph,
        )  # fmt: skip
        from qwen_export import export_component, open_package

        effective = (read_recipe(recipe) if recipe else open_package(output).recipe).with_overrides(given)
        _announce(effective)
        with ProgressDisplay() as progress:
            result = export_component(
                component, checkpoint, output, recipe=effective, revision=revision, progress=progress
            )
        return written(result)

    body.__doc__ = summary
    return body


vlm = _whole("export_vlm", "Export a whole checkpoint: vision encoder, embedding and decoder.")
text = _whole("export_text", "Export the language model alone, as one graph that takes token ids.")
vision_encoder = _component("vision_encoder", "Export the vision encoder again into an existing package.")
embedding = _component("embedding", "Export the embedding again into an existing package.")
decoder = _component("decoder", "Export the decoder again into an existing package.")


def bind(
    graphs: Annotated[Path, typer.Argument(metavar="GRAPHS", help="Package without weights.", show_default=False)],
    checkpoint: opt.SourceCheckpoint,
    output: opt.Output,
    revision: opt.Revision = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
) -> Outcome:
    """Give a graph-only export the weights of a checkpoint. Needs no torch."""
    from qwen_export import bind, open_package

    _announce(open_package(graphs).recipe)
    with ProgressDisplay() as progress:
        result = bind(graphs, checkpoint, output, revision=revision, overwrite=overwrite, progress=progress)
    return written(result)


def _announce(recipe: Recipe) -> None:
    notices().print(f"recipe: {recipe_line(recipe)}", markup=False)


def written(result: ExportResult) -> Outcome:
    """The outcome of every command that writes a package."""
    files = {path: record.size for path, record in result.manifest.files.items()}
    document = {
        "package": result.package,
        "weights": result.manifest.weights,
        "recipe": result.manifest.recipe.to_dict(),
        "files": files,
        "total_bytes": sum(files.values()),
        "missing_assets": result.manifest.missing_assets,
        "warnings": result.manifest.warnings,
        "audit": result.report.to_dict(),
        "seconds": result.seconds,
    }
    return Outcome(document, export_summary(result), passed=result.report.ok)
