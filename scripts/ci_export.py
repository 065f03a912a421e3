"""Export every reduced config of `configs/ci` in fp32 and fp16, audit it, and compare it with its committed baseline.

`ci_export.py [--update] [--summary FILE.md] [--fail-on SEVERITY]`: `--update` writes the baselines anew instead of
comparing; `--summary` appends the report as Markdown. Exit code 1: an audit said no, or something changed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from qwen_export import Recipe, audit, baseline, diff, export_text, export_vlm
from qwen_export.model_config import read_config
from qwen_export.package import Severity, diff_markdown

ROOT = Path(__file__).resolve().parents[1]
CONFIGS, BASELINES, OUT = ROOT / "configs" / "ci", ROOT / "configs" / "ci" / "baselines", ROOT / "out" / "ci"
DTYPES = ("fp32", "fp16")


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--fail-on", choices=[severity.name for severity in Severity], default="wiring")
    asked = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    BASELINES.mkdir(exist_ok=True)
    failed, pages = [], ["## Graphs of the reduced configs\n"]
    for config in sorted(CONFIGS.glob("*.json")):
        for dtype in DTYPES:
            started = time.monotonic()
            name = f"{config.stem}-{dtype}"
            passed, told, page = judge(config, dtype, name, Severity[asked.fail_on], asked.update)
            print(f"{name:20} {told} ({time.monotonic() - started:.1f} s)", flush=True)
            pages.append(page)
            if not passed:
                failed.append(name)
    if asked.summary:
        with open(asked.summary, "a", encoding="utf-8") as file:
            file.write("\n".join(pages))
    if failed:
        print(f"changed or wrong: {', '.join(failed)}. Meant so? Run scripts/ci_export.sh --update and commit.")
    return 1 if failed else 0


def judge(config: Path, dtype: str, name: str, limit: Severity, update: bool) -> tuple[bool, str, str]:
    """Export one config, audit it, compare it. Returns whether it passed, one line, and a page of Markdown."""
    package, accepted = OUT / name, BASELINES / f"{name}.json"
    export = export_text if read_config(config).vision is None else export_vlm
    export(str(config), package, recipe=Recipe(dtype=dtype), graph_only=True)
    report = audit(package, graph_only=True, deep=True)
    if not report.ok:
        findings = [str(finding) for finding in report.findings]
        return False, "\n  ".join([report.headline, *findings]), f"### {name}: {report.headline}\n"
    if update:
        baseline(package, accepted)
        return True, "baseline written", f"### {name}: baseline written\n"
    if not accepted.exists():
        told = f"no baseline {accepted.relative_to(ROOT)}"
        return False, told, f"### {name}: {told}\n"
    found = diff(accepted, package)
    passed = not found.differences or found.severity < limit
    told = "no change" if not found.differences else f"severity {found.severity.name}"
    lines = [f"  {entry.severity.name}: {entry}" for entry in found.differences]
    return passed, "\n".join([told, *lines]), diff_markdown(found, name)


if __name__ == "__main__":
    sys.exit(main())
