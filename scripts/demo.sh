#!/usr/bin/env bash
# The whole journey on the reduced checkpoint: set up, synthesise, export, audit, compare with Transformers, ask about a
# picture, sum up. Writes to out/demo, which it replaces when it is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh

# The tensors of the reduced model are tiny: more torch threads cost more than they give.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

OUT=out/demo
rm -rf "$OUT"
mkdir -p "$OUT"
STARTED=$SECONDS

step() { printf '\n== %s\n' "$*"; }
qwen-export() { "$PYTHON" -m qwen_export "$@"; }

step "1. A synthetic checkpoint in the official layout: 8 layers of both kinds, 3 vision layers, real tokenizer"
qwen-export synth "$OUT/checkpoint" --config tiny

step "2. Export to three ONNX graphs"
qwen-export vlm --checkpoint "$OUT/checkpoint" --output "$OUT/package" --dtype fp32

step "3. Audit the package again, contents included"
qwen-export audit "$OUT/package" --deep --json >"$OUT/audit.json"
"$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["headline"])' "$OUT/audit.json"

step "4. Every tensor against Transformers: text, pictures, video, padding, slices, decode steps"
qwen-export verify "$OUT/package" --checkpoint "$OUT/checkpoint" --report "$OUT/verify.html" --json \
    >"$OUT/verify.json"

step "5. Transformers and the package about the same picture"
"$PYTHON" scripts/demo_answer.py "$OUT/checkpoint" "$OUT/package" "$OUT/picture.png" | tee "$OUT/comparison.txt"

step "6. The package on its own (random weights: the answer is noise, the same noise)"
qwen-export run "$OUT/package" --image "$OUT/picture.png" --prompt "What is left of the square?" --max-new-tokens 16

step "7. A small trained checkpoint, asked about a drawn diagram (docs/diagram.png)"
qwen-export vlm --checkpoint tests/assets/tiny-vlm --output "$OUT/trained" --dtype fp32 --json >"$OUT/trained.json"
qwen-export run "$OUT/trained" --image docs/diagram.png --prompt "Describe part G."

step "Summary"
"$PYTHON" scripts/demo_summary.py "$OUT" $((SECONDS - STARTED))
