#!/usr/bin/env bash
# Measure the 27B model on a CUDA machine: full-size bind, the project's runtime, Transformers beside it, error ratios.
#
#   scripts/gpu/measure.sh PAYLOAD OUT
#
# PAYLOAD holds graph-only packages made elsewhere: full (27B, fp16, static cache with decode graph), wide/config.json with
# fp16, fp16-model-residual and bf16 (four full-width layers), and optionally wheels of flash-linear-attention.
# Needs about 120 GB of memory disk. Every figure is one JSON line in OUT/figures.jsonl; steps that fail are named there.
set -u
payload=$1 out=$2 here=$(cd "$(dirname "$0")" && pwd) work=${WORK:-/dev/shm/measure}
mkdir -p "$work" "$out"
say() { echo "{\"step\": \"$1\", \"at_s\": $SECONDS}" | tee -a "$out/figures.jsonl"; }
step() { # name, limit in seconds, command...
  local name=$1 limit=$2
  shift 2
  say "$name"
  timeout "$limit" "$@" 2>"$out/$name.err" | grep --line-buffered '^{\|^request' | tee -a "$out/figures.jsonl"
  [ "${PIPESTATUS[0]}" -eq 0 ] || { say "$name failed"; tail -n 4 "$out/$name.err" | cut -c1-600; }
}
cd "$here" || exit 2
python3 -c "import onnxruntime, torch, transformers, onnx; print('{\"versions\": \"ort', onnxruntime.__version__, 'torch', \
torch.__version__, 'transformers', transformers.__version__, 'onnx', onnx.__version__, torch.cuda.get_device_name(), '\"}')" |
  tee -a "$out/figures.jsonl"
step make 260 python3 full_size.py make "$work/checkpoint" "$payload/full" "$work/package" --plain-bytes 4000000000
rm -rf "$work/checkpoint" "$work/plain"
step time 110 python3 full_size.py time "$work/package"
step hf 100 python3 hf.py "$payload/full/config.json" --tokens 10
step vision 40 python3 vision.py "$work/package/vision_encoder/model.onnx" --mix
step serve 110 python3 full_size.py serve "$work/package"
rm -rf "$work/package"
step error_fp16 80 python3 error_ratio.py "$payload/wide" --graphs "$payload/fp16"
step error_bf16 70 python3 error_ratio.py "$payload/wide" --graphs "$payload/bf16"
step hf_fla 100 python3 hf.py "$payload/full/config.json" --tokens 8 --kernels fla --patches ""
step error_model_residual 60 python3 error_ratio.py "$payload/wide" --graphs "$payload/fp16-model-residual"
say done
rm -rf "$work"
