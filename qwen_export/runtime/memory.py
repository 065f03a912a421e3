"""How much memory a graph run will need, and how much is free: a refusal with a number instead of a killed process.

The estimates are upper bounds of the largest tensors alive at once, checked against measured peaks by a test. Units are
bytes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qwen_export.contract import FLOAT32
from qwen_export.errors import UsageError
from qwen_export.model_config import ModelConfig
from qwen_export.recipe import Recipe
from qwen_export.runtime.session import Device

MARGIN = 1.2
"""Estimates are this much above the largest tensors alive at once: an arena never fits them exactly."""
RESERVE = 256 * 2**20
"""Left free for everybody else."""


@dataclass(frozen=True)
class MemoryModel:
    """Estimates for one package on one device."""

    config: ModelConfig
    recipe: Recipe
    device: Device

    @property
    def _width(self) -> int:
        """Bytes of an activation: ONNX Runtime's CPU provider computes half precision in float32."""
        return 4 if self.device.provider == "cpu" or self.recipe.tensor_dtype == FLOAT32 else 2

    @property
    def _quadratic(self) -> bool:
        """Whether attention materialises its scores: the CPU kernel always does, CUDA in float32 does."""
        return self.device.provider == "cpu" or self.recipe.tensor_dtype == FLOAT32

    def vision(self, num_segments: int, longest: int) -> int:
        """One run of the vision graph over `num_segments` pictures or frames of at most `longest` patch rows."""
        vision = self.config.vision
        assert vision is not None
        rows = num_segments * longest
        # On the CPU in float32 the graph reads the caller's pixels; elsewhere they are copied and cast.
        pixels = rows * vision.patch_width * (4 + self._width) if self.device.provider == "cuda" else 0
        activations = rows * (12 * vision.hidden_size + 2 * vision.intermediate_size) * self._width
        scores = 0
        if self.device.provider == "cpu":
            block = min(self.recipe.effective_attention_block or longest, longest)
            scores = num_segments * vision.num_heads * block * longest * 4
        return int(MARGIN * (pixels + activations + scores))

    def decoder(self, batch: int, new: int, past: int, *, padded: bool = False) -> int:
        """One run of the decoder over `new` tokens after `past` ones."""
        text, total = self.config.text, past + new
        wide = 10 * text.hidden_size + 3 * text.intermediate_size + 6 * text.conv_dim
        wide += 4 * text.num_attention_heads * text.head_dim
        activations = batch * new * wide * self._width
        heads = text.linear_num_value_heads * max(text.linear_key_head_dim, text.linear_value_head_dim)
        delta = 12 * batch * (new + self.recipe.effective_chunk_size * (new > 1)) * heads * 4
        kv = len(text.full_layers) * batch * text.num_key_value_heads * text.head_dim * 2 * self._kv_width
        caches = 0 if self.recipe.static_length else kv * (past + total)
        scores = 2 * batch * text.num_attention_heads * new * total * 4 if self._quadratic or padded else 0
        logits = 2 * batch * (new if self.recipe.logits == "all" else 1) * text.vocab_size * 4
        return activations + delta + caches + scores + logits

    @property
    def _kv_width(self) -> int:
        return 4 if self.recipe.tensor_dtype == FLOAT32 else 2


def vision_fits(model: MemoryModel, num_segments: int, longest: int, ask_free: Callable[[], int | None]) -> bool:
    """Whether a vision run fits into what is free, as far as anybody says."""
    needed = model.vision(num_segments, longest)
    free = _free_if_it_matters(needed, ask_free)
    return free is None or needed + RESERVE <= free


def check_vision(model: MemoryModel, num_segments: int, longest: int, ask_free: Callable[[], int | None]) -> None:
    """Refuse a vision run that does not fit, naming the `--max-pixels` that does."""
    needed = model.vision(num_segments, longest)
    free = _free_if_it_matters(needed, ask_free)
    if free is None or needed + RESERVE <= free:
        return
    vision = model.config.vision
    assert vision is not None
    unit = vision.merge_unit
    rows = _largest(lambda n: model.vision(num_segments, n * unit) + RESERVE <= free, longest // unit) * unit
    if not rows:
        raise UsageError(f"Pictures need {_size(needed)} for the vision graph; only {_size(free)} are free. {_CLOSE}")
    raise UsageError(
        f"A picture of {longest} patches needs {_size(needed)} for the vision graph; {_size(free)} are free. "
        f"Use --max-pixels {rows * vision.patch_size**2} or less."
    )


def check_decoder(
    model: MemoryModel, batch: int, new: int, past: int, ask_free: Callable[[], int | None], *, padded: bool
) -> None:
    """Refuse a decoder run that does not fit, naming the slice that does."""
    needed = model.decoder(batch, new, past, padded=padded)
    free = _free_if_it_matters(needed, ask_free)
    if free is None or needed + RESERVE <= free:
        return
    fits = _largest(lambda n: model.decoder(batch, n, past + new - n, padded=padded) + RESERVE <= free, new)
    advice = f"Use --prefill-slice {fits}." if fits else _CLOSE
    raise UsageError(
        f"{new} tokens after {past} in {batch} row(s) need {_size(needed)} for the decoder; {_size(free)} are free. "
        f"{advice}"
    )


def _free_if_it_matters(needed: int, ask_free: Callable[[], int | None]) -> int | None:
    """What is free, or None for a need too small to ask: asking a GPU takes longer than a short turn may."""
    return ask_free() if needed > RESERVE else None


def free_memory(device: Device) -> int | None:
    """Free bytes where the graphs run; None where nobody says."""
    return _free_host() if device.provider == "cpu" else _free_gpu(device.index)


def resident_memory() -> int:
    """Bytes of this process in memory now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _free_host() -> int | None:
    import psutil

    free = int(psutil.virtual_memory().available)
    # A container's limit is not what the machine reports.
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    reclaimable = _cgroup_cache()
    return free if limit is None or used is None else min(free, max(0, limit - used + reclaimable))


def _cgroup_cache() -> int:
    """File pages of the container that the kernel would give back."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in ("inactive_file", "active_file"))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _free_gpu(index: int) -> int | None:
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return int(out.strip().splitlines()[0]) * 2**20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n from 1 to `most` that fits, 0 for none. What fits must also fit when smaller."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


_CLOSE = "Close other programs or use a machine with more memory."


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
