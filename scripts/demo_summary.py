"""Sum up what the demo left: demo_summary.py OUT SECONDS."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from qwen_export import open_package

folder, seconds = Path(sys.argv[1]), int(sys.argv[2])
package = open_package(folder / "package")
audit = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
comparison = json.loads((folder / "comparison.txt").read_text(encoding="utf-8").splitlines()[-1])
nodes = {graph.removesuffix("/model.onnx"): sum(counts.values()) for graph, counts in audit["inventories"].items()}
print(f"package     {package.folder} ({package.recipe.dtype}, {len(package.components)} graphs)")
print(f"nodes       {', '.join(f'{name} {count:,}' for name, count in nodes.items())}")
print(f"audit       {'passes' if audit['ok'] else 'FAILS'}")
print(
    f"parity      logits within {comparison['logits_max_abs']:.1e} of Transformers, {comparison['tokens']} tokens equal"
)
print(f"time        {seconds} s after set-up")
