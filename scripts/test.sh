#!/usr/bin/env bash
# Set up and test: lint, format, types, tests. `--full` adds the tests marked "full"; other words go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh

# The tests' tensors are tiny: more torch threads cost more than they give, and two workers run side by side.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

SELECT=(-m "not full")
if [ "${1:-}" = "--full" ]; then
    SELECT=()
    shift
fi

"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
"$PYTHON" -m pytest -n 2 --dist loadfile ${SELECT[@]+"${SELECT[@]}"} "$@"
# with words for pytest, only those tests are wanted
if [ "$#" -eq 0 ]; then
    bash scripts/ci_export.sh
fi
