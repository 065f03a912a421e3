"""Sum up what the demo left: demo_summary.py OUT SECONDS."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from qwen_export import open_package


def main() -> None:
    """Print the summary."""
    folder, seconds = Path(sys.argv[1]), int(sys.argv[2])
    package = open_package(folder / "package")
    audit, verdict = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("audit.json", "verify.json"))
    answer = json.loads((folder / "comparison.txt").read_text(encoding="utf-8").splitlines()[-1])
    nodes = {graph.removesuffix("/model.onnx"): sum(counts.values()) for graph, counts in audit["inventories"].items()}
    worst = max(row["max_abs"] for row in verdict["tensors"])
    print(f"package     {package.folder} ({package.recipe.dtype}, {len(package.components)} graphs)")
    print(f"nodes       {', '.join(f'{name} {count:,}' for name, count in nodes.items())}")
    print(f"audit       {'passes' if audit['ok'] else 'FAILS'}")
    print(
        f"verify      {'passes' if verdict['passed'] else 'FAILS'}: {len(verdict['tensors'])} tensors in "
        f"{len(verdict['cases'])} cases, at most {worst:.1e} from the float64 truth"
    )
    print(f"answer      {answer['tokens']} tokens equal, logits within {answer['logits_max_abs']:.1e}")
    print(f"time        {seconds} s after set-up")


if __name__ == "__main__":
    main()
