"""Tables for people: what the commands print on stdout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qwen_export.cli.output import size, visible
from qwen_export.recipe import Recipe

if TYPE_CHECKING:
    from qwen_export.package import AuditReport, DiffReport, ExportResult, Fingerprint, Inspection

STATE_PREFIXES = ("past_key_values.", "present.")


def facts(rows: Mapping[str, Any]) -> Table:
    """Two columns without lines: a name and its value."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(visible(name)), Text(visible(str(value))))
    return table


def recipe_line(recipe: Recipe) -> str:
    """Every setting of a recipe that shapes the graphs, in one line."""
    rows = {
        "dtype": recipe.dtype,
        "logits": recipe.logits,
        "target": recipe.target,
        "chunk size": recipe.effective_chunk_size,
        "attention block": recipe.effective_attention_block or "none",
        "residual": recipe.residual,
        "kv cache": recipe.kv_cache if recipe.static_length is None else f"static, {recipe.static_length} tokens",
        "decode graph": "yes" if recipe.decode_graph else "no",
    }
    return ", ".join(f"{name} {value}" for name, value in rows.items())


def export_summary(result: ExportResult) -> Iterator[RenderableType]:
    """Where the package is, how large, how long it took, and the audit's verdict."""
    files = result.manifest.files
    yield facts(
        {
            "package": result.package,
            "weights": result.manifest.weights,
            "size": f"{size(sum(record.size for record in files.values()))} in {len(files) + 1} files",
            "seconds": ", ".join(f"{stage} {spent:.1f}" for stage, spent in result.seconds.items()),
        }
    )
    yield from audit_tables(result.report)


def audit_tables(report: AuditReport) -> Iterator[RenderableType]:
    """The verdict, what was found, and the operators of every graph."""
    yield Text(report.headline, style="bold green" if report.ok else "bold red")
    for finding in report.findings:
        yield Text(visible(str(finding)), style="red")
    for note in report.notes:
        yield Text(f"note: {visible(note)}", style="yellow")
    if report.inventories:
        yield operators(report.inventories)


def operators(inventories: Mapping[str, Mapping[str, int]]) -> Table:
    """One row per operator, one column per graph; nested subgraphs are counted in."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator")
    for graph in inventories:
        table.add_column(graph.removesuffix("/model.onnx"), justify="right")
    totals = [sum(counts.values()) for counts in inventories.values()]
    table.add_row("all", *(f"{total:,}" for total in totals), style="bold")
    names = {name for counts in inventories.values() for name in counts}
    for name in sorted(names, key=lambda name: (-sum(counts.get(name, 0) for counts in inventories.values()), name)):
        cells = [counts.get(name, 0) for counts in inventories.values()]
        table.add_row(visible(name), *(f"{count:,}" if count else "" for count in cells))
    return table


def inspection_tables(inspection: Inspection, *, every_state: bool) -> Iterator[RenderableType]:
    """What `inspect` found. `every_state`: list the states of each layer, not only of the first with such a state."""
    known = {name: value for name, value in inspection.facts.items() if value is not None}
    yield facts(
        {inspection.kind: inspection.path} | {k: f"{v:,}" if isinstance(v, int) else v for k, v in known.items()}
    )
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in ("component", "tensors", "size", "dtypes", "nodes"):
        table.add_column(column, justify="left" if column in ("component", "dtypes") else "right")
    for piece in inspection.pieces:
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in piece.dtypes.items())
        nodes = f"{piece.num_nodes:,}" if piece.num_nodes else ""
        table.add_row(piece.component, f"{piece.num_tensors:,}", size(piece.num_bytes), dtypes, nodes)
    yield ""
    yield table
    for graph, sides in inspection.contract.items():
        yield ""
        yield _interface(graph, sides, every_state)
    if inspection.operators:
        yield ""
        yield operators(inspection.operators)
    for graph, layers in inspection.layers.items():
        yield ""
        yield layer_table(graph, layers)
    yield ""
    yield facts({name: size(num_bytes) for name, num_bytes in inspection.files.items()})
    for name in inspection.missing_assets:
        yield Text(f"note: {name} is missing", style="yellow")


def _interface(graph: str, sides: Mapping[str, Any], every_state: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column(graph, no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    table.add_column("shape", overflow="fold")
    for side, arrow in (("inputs", "in "), ("outputs", "out")):
        seen: set[str] = set()
        left_out = 0
        for tensor in sides[side]:
            kind = str(tensor["name"]).rpartition(".")[2]
            if tensor["name"].startswith(STATE_PREFIXES) and kind in seen and not every_state:
                left_out += 1
                continue
            seen.add(kind)
            shape = ", ".join(str(axis) for axis in tensor["shape"])
            table.add_row(Text(f"{arrow} {tensor['name']}"), tensor["dtype"], Text(f"[{shape}]"))
        if left_out:
            table.add_row(f"    and {left_out:,} states of other layers (--verbose lists them)", "", "", style="dim")
    return table


_STYLES = {"interface": "bold red", "operators": "red", "wiring": "yellow", "nothing": "dim"}


def diff_tables(report: DiffReport) -> Iterator[RenderableType]:
    """The verdict, every difference under its severity, and the figures that changed."""
    if report.same:
        yield Text("no difference", style="bold green")
    else:
        count = sum(1 for entry in report.differences if entry.severity)
        says = f"{count:,} difference{'s' if count > 1 else ''}, severity {report.severity.name}"
        yield Text(says, style="bold red")
    for entry in report.differences:
        name = entry.severity.name
        yield Text(f"{name if entry.severity else 'note':10}{visible(str(entry))}", style=_STYLES[name])
    changed = [metric for metric in (*report.metrics, *report.histogram) if metric.mark]
    if changed:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("component", "metric", "baseline", "current", "change", "mark"):
            table.add_column(column, justify="right" if column in ("baseline", "current", "change") else "left")
        for row in changed:
            name = row.graph.removesuffix("/model.onnx")
            table.add_row(
                visible(name), visible(row.metric), f"{row.baseline:,}", f"{row.current:,}", row.change, row.mark
            )
        yield ""
        yield table


def fingerprint_tables(taken: Fingerprint, output: Path) -> Iterator[RenderableType]:
    """Where the baseline is and the figures of each graph."""
    yield facts({"baseline": output, "weights": taken.weights, **taken.versions})
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("component", "nodes", "graph bytes", "weight bytes"):
        table.add_column(column, justify="left" if column == "component" else "right")
    for path, graph in taken.graphs.items():
        table.add_row(path.removesuffix("/model.onnx"), *(f"{value:,}" for value in graph.metrics.values()))
    yield ""
    yield table


def layer_table(graph: str, layers: Mapping[str, Mapping[str, int]]) -> Table:
    """One row per layer or other module: its nodes, and the operators of them, most frequent first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(graph, no_wrap=True)
    table.add_column("nodes", justify="right")
    table.add_column("operators", overflow="fold")
    for layer, counts in layers.items():
        told = ", ".join(f"{count} {operator}" for operator, count in counts.items())
        table.add_row(Text(visible(layer)), f"{sum(counts.values()):,}", Text(visible(told)))
    return table
