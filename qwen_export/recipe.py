"""The recipe: what to build and how to run it, one frozen dataclass.

Defaults can be changed by `--recipe FILE.toml` and single flags; the effective recipe is printed at the start of an
export and stored in the manifest. An unknown key is an error.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from qwen_export.contract import DTYPES
from qwen_export.errors import UsageError


@dataclass(frozen=True)
class Tolerances:
    """Named limits of `verify`. A verdict always prints the limits it used."""

    fp32_max_abs: float = 5e-5
    """Largest absolute difference of an fp32 package's features, logits and states from the truth."""
    fp32_relative_rms: float = 1e-5
    """RMS error over the tensor's RMS, fp32 package."""
    fp32_error_ratio: float = 2.0
    """Where Transformers in fp32 itself is further from the truth than that: our error over its."""
    operation_error: float = 2e-6
    """RMS error over RMS of one operation in float32, the truth's inputs fed in."""
    delta_rule_error: float = 4e-5
    """The same for the token mixers, which sum over many tokens."""
    half_error_ratio: float = 1.05
    """Pooled RMS error of ours against the truth, over that of Transformers in half precision."""
    rtol: float = 1e-2
    atol: float = 1e-2


@dataclass(frozen=True)
class Thresholds:
    """How much a component may grow before `diff` marks it, as a share of the accepted size: 0.02 is two percent."""

    nodes: float = 0.0
    graph_bytes: float = 0.05
    weight_bytes: float = 0.0


@dataclass(frozen=True)
class SessionOptions:
    """How the runtime opens its sessions; the reasons are in docs/runtime.md."""

    cuda: dict[str, str] = field(
        default_factory=lambda: {
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
            "use_tf32": "0",
            # without it every subgraph has a stream of its own and its freed memory serves no other: 15 GB for 2.6
            "use_ep_level_unified_stream": "1",
        }
    )
    session: dict[str, str] = field(default_factory=lambda: {"session.use_device_allocator_for_initializers": "1"})


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what an export writes and how it is run and judged by default."""

    dtype: str = "fp16"
    """Model dtype: fp32, fp16 or bf16."""
    logits: str = "last"
    """`last`: logits of the last position only. `all`: of every position."""
    target: str = "cuda"
    """`cuda`: chunk 64. `cpu`: chunk 32, and vision queries walked in blocks."""
    chunk_size: int = 0
    """Tokens per chunk of the delta rule, a power of two; 0 takes the target's own (cuda 64, cpu 32)."""
    attention_block: int = 0
    """Vision queries per block with target cpu; 0 takes 1024. The cuda target never blocks."""
    residual: str = "float32"
    """dtype of the decoder's residual stream: `float32` (0.7 times the error of Transformers' half), or `model`."""
    kv_cache: str = "dynamic"
    """`dynamic`: KV grows by concatenation. `static`: buffers of `max_length`, written in place."""
    max_length: int = 0
    """Length of a static KV cache in tokens."""
    decode_graph: bool = False
    """Also write decoder/decode.onnx, a single-token graph free of If, Scan and Loop (needs a static cache)."""
    prefill_slice: int = 1024
    """Tokens of a prompt that the runtime feeds at a time."""
    tolerances: Tolerances = field(default_factory=Tolerances)
    thresholds: Thresholds = field(default_factory=Thresholds)
    session: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, tuple(DTYPES))
        _one_of("logits", self.logits, ("last", "all"))
        _one_of("target", self.target, ("cuda", "cpu"))
        _one_of("residual", self.residual, ("model", "float32"))
        _one_of("kv_cache", self.kv_cache, ("dynamic", "static"))
        chunk = self.effective_chunk_size
        if chunk < 2 or chunk & (chunk - 1) or chunk > 256:
            raise UsageError(f"chunk_size must be a power of two from 2 to 256, not {self.chunk_size}.")
        if self.kv_cache == "static" and self.max_length < 1:
            raise UsageError("A static KV cache needs its length: add --max-length N.")
        if self.kv_cache == "dynamic" and (self.max_length or self.decode_graph):
            raise UsageError("--max-length and --decode-graph belong to --kv-cache static.")
        if self.prefill_slice < 1:
            raise UsageError(f"prefill_slice must be at least 1, not {self.prefill_slice}.")

    @property
    def tensor_dtype(self) -> str:
        """The model dtype as a tensor dtype: float32, float16 or bfloat16."""
        return DTYPES[self.dtype]

    @property
    def effective_chunk_size(self) -> int:
        """Tokens per chunk after the target's default."""
        return self.chunk_size or (32 if self.target == "cpu" else 64)

    @property
    def effective_attention_block(self) -> int:
        """Vision queries per block, 0 for no blocking."""
        return (self.attention_block or 1024) if self.target == "cpu" else 0

    @property
    def static_length(self) -> int | None:
        """Length of the static KV cache, None for the growing one."""
        return self.max_length if self.kv_cache == "static" else None

    def to_dict(self) -> dict[str, Any]:
        """JSON form for the manifest."""
        return asdict(self)

    def with_overrides(self, overrides: dict[str, Any]) -> Recipe:
        """A copy with some top-level fields replaced; None means not given."""
        return replace(self, **{key: value for key, value in overrides.items() if value is not None})


def recipe_from_dict(data: dict[str, Any], where: str) -> Recipe:
    """Build a recipe from parsed TOML or a manifest. Unknown keys are refused by name."""
    values = dict(_checked(Recipe, data, where))
    if "tolerances" in values:
        values["tolerances"] = Tolerances(**_checked(Tolerances, values["tolerances"], f"{where}, [tolerances]"))
    if "thresholds" in values:
        values["thresholds"] = Thresholds(**_checked(Thresholds, values["thresholds"], f"{where}, [thresholds]"))
    if "session" in values:
        values["session"] = SessionOptions(**_checked(SessionOptions, values["session"], f"{where}, [session]"))
    return Recipe(**values)


def read_recipe(path: Path | None) -> Recipe:
    """Read a recipe file; no path gives the defaults."""
    if path is None:
        return Recipe()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"No recipe file {path}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read as TOML: {error}.") from None
    return recipe_from_dict(data, str(path))


_TYPES: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}


def _checked(cls: type, data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError(f"{where}: expected a table, found {type(data).__name__}.")
    names = {f.name: f for f in fields(cls)}
    for key, value in data.items():
        if key not in names:
            raise UsageError(f"{where}: unknown key {key!r}. Known keys: {', '.join(sorted(names))}.")
        wanted = _TYPES.get(str(names[key].type))
        if wanted and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
            raise UsageError(f"{where}: {key} must be a {names[key].type}, not {value!r}.")
    return data


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}; found {value!r}.")
