#!/usr/bin/env bash
# Export the reduced configs of configs/ci in fp32 and fp16, audit them, compare them with their baselines. `--update`
# writes the baselines anew; `--summary FILE.md` appends the report as Markdown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh

# The tensors are tiny: more torch threads cost more than they give.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
"$PYTHON" scripts/ci_export.py "$@"
