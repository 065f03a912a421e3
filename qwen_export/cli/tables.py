"""Tables for people: what the commands print on stdout."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table


def facts(rows: Mapping[str, str]) -> Table:
    """Two columns without lines: a name and its value."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
