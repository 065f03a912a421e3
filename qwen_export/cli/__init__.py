"""The command line: parse, call one library function, render what it returned."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script `qwen-export`."""
    from qwen_export.cli.app import run

    run()
