"""The contract: every graph's inputs and outputs, spelled once.

Wrappers, samples, audit, runtime and docs derive from here. Axis names are literal strings; a shape entry is an int
when the axis is fixed. See `docs/interface.md` for the prose.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_export.model_config import LINEAR_ATTENTION, ModelConfig, TextConfig

OPSET = 24
IR_VERSION = 11

VISION_ENCODER = "vision_encoder"
EMBEDDING = "embedding"
DECODER = "decoder"
TEXT = "text"
COMPONENTS = (VISION_ENCODER, EMBEDDING, DECODER)

BATCH = "batch"
SEQUENCE = "sequence_length"
PAST = "past_sequence_length"
TOTAL = "past_sequence_length + sequence_length"
PATCHES = "num_patches"
MEDIA = "num_media"
FEATURES = "num_features"

FLOAT32, FLOAT16, BFLOAT16, INT64 = "float32", "float16", "bfloat16", "int64"
DTYPES = {"fp32": FLOAT32, "fp16": FLOAT16, "bf16": BFLOAT16}
"""Command-line name of a model dtype -> tensor dtype."""

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class TensorSpec:
    """One graph input or output."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class GraphContract:
    """All inputs and outputs of one graph, in order."""

    component: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_dict(self) -> dict:
        """JSON form for the manifest."""
        return {
            side: [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in getattr(self, side)]
            for side in ("inputs", "outputs")
        }


@dataclass(frozen=True)
class StateSpec:
    """One carried state of one layer: the input it is read from and the output it is written to."""

    layer: int
    kind: str
    """`key`, `value`, `conv_state` or `recurrent_state`."""
    past: TensorSpec
    present: TensorSpec


def states(config: TextConfig, dtype: str, *, max_length: int | None = None) -> tuple[StateSpec, ...]:
    """All states of a decoder in contract order: by layer, and within a layer key/value or conv/recurrent.

    Args:
        dtype: tensor dtype of the model (`float32`, `float16`, `bfloat16`). Recurrent state is float32 always.
        max_length: length of a static KV cache; None for the growing one.
    """
    out = []
    for layer, kind in enumerate(config.layer_types):
        if kind == LINEAR_ATTENTION:
            conv: Shape = (BATCH, config.conv_dim, config.linear_conv_kernel_dim - 1)
            recurrent: Shape = (
                BATCH,
                config.linear_num_value_heads,
                config.linear_key_head_dim,
                config.linear_value_head_dim,
            )
            out.append(_state(layer, "conv_state", dtype, conv, conv))
            out.append(_state(layer, "recurrent_state", FLOAT32, recurrent, recurrent))
        else:
            heads, dim = config.num_key_value_heads, config.head_dim
            past: Shape = (BATCH, heads, max_length or PAST, dim)
            present: Shape = (BATCH, heads, max_length or TOTAL, dim)
            out.append(_state(layer, "key", dtype, past, present))
            out.append(_state(layer, "value", dtype, past, present))
    return tuple(out)


def _state(layer: int, kind: str, dtype: str, past: Shape, present: Shape) -> StateSpec:
    return StateSpec(
        layer,
        kind,
        TensorSpec(f"past_key_values.{layer}.{kind}", dtype, past),
        TensorSpec(f"present.{layer}.{kind}", dtype, present),
    )


def vision_encoder_contract(config: ModelConfig, dtype: str) -> GraphContract:
    """Patch rows and grids in, image features out."""
    assert config.vision is not None
    return GraphContract(
        VISION_ENCODER,
        inputs=(
            TensorSpec("pixel_values", FLOAT32, (PATCHES, config.vision.patch_width)),
            TensorSpec("image_grid_thw", INT64, (MEDIA, 3)),
        ),
        outputs=(TensorSpec("image_features", dtype, (FEATURES, config.vision.out_hidden_size)),),
    )


def embedding_contract(config: ModelConfig, dtype: str) -> GraphContract:
    """Token ids and image features in, fused embeddings out."""
    hidden = config.text.hidden_size
    return GraphContract(
        EMBEDDING,
        inputs=(
            TensorSpec("input_ids", INT64, (BATCH, SEQUENCE)),
            TensorSpec("image_features", dtype, (FEATURES, hidden)),
        ),
        outputs=(TensorSpec("inputs_embeds", dtype, (BATCH, SEQUENCE, hidden)),),
    )


def decoder_contract(
    config: ModelConfig,
    dtype: str,
    *,
    component: str = DECODER,
    logits: str = "last",
    max_length: int | None = None,
    single_step: bool = False,
) -> GraphContract:
    """Embeddings (text-only: ids), mask, positions and states in; logits and states out.

    Args:
        component: `decoder`, or `text` for the text-only graph that takes `input_ids`.
        logits: `last` for [B, 1, V], `all` for [B, S, V].
        max_length: length L of a static KV cache, None for the growing one.
        single_step: the capturable decode graph: S = 1 and a mask of fixed length L.
    """
    text = config.text
    length: int | str = 1 if single_step else SEQUENCE
    first = (
        TensorSpec("input_ids", INT64, (BATCH, length))
        if component == TEXT
        else TensorSpec("inputs_embeds", dtype, (BATCH, length, text.hidden_size))
    )
    mask: int | str = max_length if single_step and max_length else TOTAL
    carried = states(text, dtype, max_length=max_length)
    return GraphContract(
        component,
        inputs=(
            first,
            TensorSpec("attention_mask", INT64, (BATCH, mask)),
            TensorSpec("position_ids", INT64, (3, BATCH, length)),
            *(state.past for state in carried),
        ),
        outputs=(
            TensorSpec("logits", logits_dtype(dtype), (BATCH, 1 if logits == "last" else length, text.vocab_size)),
            *(state.present for state in carried),
        ),
    )


def logits_dtype(dtype: str) -> str:
    """Logits leave in the model dtype, except bf16, which numpy does not have."""
    return FLOAT32 if dtype == BFLOAT16 else dtype


def graph_file(component: str) -> str:
    """Where a component's graph lies in a package, as a POSIX path."""
    return "model.onnx" if component == TEXT else f"{component}/model.onnx"
