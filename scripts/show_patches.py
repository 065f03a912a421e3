"""Print every re-spelled upstream function, its fingerprint in the installed version, and whether it is accepted.

With a name as argument the function's source is printed, to be compared with the wrapper named beside it.
"""

from __future__ import annotations

import ast
import sys

from qwen_export.patches import RESPELLED, fingerprint
from qwen_export.patches.respelled import source_of


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    stale = 0
    for entry in RESPELLED:
        if wanted and wanted not in entry.function:
            continue
        found = fingerprint(entry.module, entry.function)
        accepted = found in entry.accepted
        stale += not accepted
        print(f"{'ok     ' if accepted else 'CHANGED'} {found or 'missing':16}  {entry.function}  ->  {entry.here}")
        node = source_of(entry.module, entry.function)
        if wanted and node is not None:
            print(ast.unparse(node))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
