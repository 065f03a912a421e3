"""What an audit says: findings, each with its place and rule, and an operator inventory per graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One breach. `graph` is a file of the package; `node` a node, initializer or tensor in it, where there is one."""

    rule: str
    message: str
    graph: str = ""
    node: str = ""

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.graph, self.node) if part)
        return f"[{self.rule}] {place + ': ' if place else ''}{self.message}"


@dataclass(frozen=True)
class AuditReport:
    """The verdict on a package.

    Attributes:
        inventories: graph file -> operator -> number of nodes, nested subgraphs included.
        graph_only: the package holds no weight data.
        deep: contents were compared with the manifest's hashes too.
        notes: what a reader should know but no rule forbids.
    """

    findings: tuple[Finding, ...] = ()
    inventories: dict[str, dict[str, int]] = field(default_factory=dict)
    graph_only: bool = False
    deep: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the package passes."""
        return not self.findings

    @property
    def headline(self) -> str:
        """The first line of the printed report."""
        kind = "graph-only package" if self.graph_only else "package"
        how = "contents included" if self.deep else "structure and sizes"
        count = len(self.findings)
        verdict = "passes" if self.ok else f"fails with {count} finding{'s' if count > 1 else ''}"
        return f"{kind}: audit {verdict} ({how})"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "ok": self.ok,
            "graph_only": self.graph_only,
            "deep": self.deep,
            "headline": self.headline,
            "findings": [asdict(finding) for finding in self.findings],
            "notes": list(self.notes),
            "inventories": self.inventories,
        }
