"""Every option and argument of the command line, spelled once. A test freezes the list."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from qwen_export.recipe import Recipe


class Dtype(StrEnum):
    """Model dtype; the names are those of `contract.DTYPES`."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


class Logits(StrEnum):
    """Positions whose logits leave the decoder."""

    last = "last"
    all = "all"


class Target(StrEnum):
    """What the graphs are shaped for."""

    cuda = "cuda"
    cpu = "cpu"


class Residual(StrEnum):
    """dtype of the decoder's residual stream."""

    model = "model"
    float32 = "float32"


class KvCache(StrEnum):
    """Form of the KV cache."""

    dynamic = "dynamic"
    static = "static"


class Runtime(StrEnum):
    """Who opens the package: a program of one's own, or ONNX Runtime GenAI as well."""

    ort = "ort"
    ort_genai = "ort-genai"


class Severity(StrEnum):
    """How much a difference matters; the names are those of `package.Severity`."""

    interface = "interface"
    operators = "operators"
    wiring = "wiring"
    nothing = "nothing"


class ReportFormat(StrEnum):
    """How `diff` prints its report."""

    text = "text"
    markdown = "markdown"


class Provider(StrEnum):
    """ONNX Runtime execution provider."""

    cpu = "cpu"
    cuda = "cuda"


Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="DIR|HUB_ID|CONFIG",
        help="Checkpoint folder or Hugging Face Hub id; with --graph-only a bare config.json will do.",
    ),
]
SourceCheckpoint = Annotated[
    str, typer.Option("--checkpoint", metavar="DIR|HUB_ID", help="Checkpoint folder or Hugging Face Hub id.")
]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="NAME", help="Branch, tag or commit of a Hub checkpoint.")
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="PKG", help="Package folder to write.")]
ExistingPackage = Annotated[
    Path, typer.Option("--output", "-o", metavar="PKG", help="Existing package whose component is replaced.")
]
DtypeOption = Annotated[
    Dtype | None, typer.Option("--dtype", help="Model dtype of weights and activations.", show_default=Recipe.dtype)
]
LogitsOption = Annotated[
    Logits | None,
    typer.Option("--logits", help="Logits of the last position only, or of all.", show_default=Recipe.logits),
]
TargetOption = Annotated[
    Target | None,
    typer.Option("--target", help="cpu: smaller chunks, blocked vision attention.", show_default=Recipe.target),
]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE.toml", help="Recipe file; single options override it.")
]
ChunkSize = Annotated[
    int | None,
    typer.Option("--chunk-size", metavar="N", help="Tokens per chunk of the delta rule, a power of two."),
]
ResidualOption = Annotated[
    Residual | None,
    typer.Option("--residual", help="dtype of the decoder's residual stream.", show_default=Recipe.residual),
]
KvCacheOption = Annotated[
    KvCache | None,
    typer.Option("--kv-cache", help="Growing KV cache, or buffers of --max-length.", show_default=Recipe.kv_cache),
]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", metavar="N", help="Length of a static KV cache in tokens.")
]
DecodeGraph = Annotated[
    bool | None,
    typer.Option("--decode-graph", metavar="", help="Also write a single-token decoder graph for CUDA graph capture."),
]
GraphOnly = Annotated[bool, typer.Option("--graph-only", metavar="", help="Write the graphs without weight data.")]
AllowGraphOnly = Annotated[bool, typer.Option("--graph-only", metavar="", help="Accept a package without weight data.")]
Deep = Annotated[bool, typer.Option("--deep", metavar="", help="Also hash every file and compare with the manifest.")]
FailOn = Annotated[
    Severity, typer.Option("--fail-on", help="Exit code 1 from this severity on; nothing: from the first note on.")
]
FormatOption = Annotated[ReportFormat, typer.Option("--format", help="For a terminal, or for a pull request.")]
ThresholdFile = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE.toml", help="Take the thresholds of this recipe, not A's.")
]
Layers = Annotated[bool, typer.Option("--layers", metavar="", help="Also group the nodes of a package by layer.")]
BaselineFile = Annotated[Path, typer.Option("--output", "-o", metavar="FILE.json", help="Baseline to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace an existing package.")]
AsJson = Annotated[
    bool, typer.Option("--json", metavar="", help="One JSON document on stdout, everything else on stderr.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Say more on stderr; show tracebacks.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads.")]
RuntimeOption = Annotated[
    Runtime, typer.Option("--runtime", help="ort-genai: also the files by which ONNX Runtime GenAI opens the package.")
]
ProviderOption = Annotated[Provider, typer.Option("--provider", help="Where to compute.")]
Package = Annotated[Path, typer.Argument(metavar="PKG", help="Package folder.", show_default=False)]


def overrides(**given: object) -> dict[str, Any]:
    """Recipe fields that were given on the command line, as plain values."""
    return {
        name: str(value) if isinstance(value, StrEnum) else value for name, value in given.items() if value is not None
    }
