"""Judge a package's GenAI files without GenAI: every name in them exists in the graphs, and the reverse; limits fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from qwen_export.contract import DECODER, EMBEDDING, TEXT, VISION_ENCODER, states
from qwen_export.errors import PackageError
from qwen_export.genai.config import TEXT_TYPE, VLM_TYPE, context_length
from qwen_export.genai.processor import processor_config
from qwen_export.genai.tokens import TokenFacts
from qwen_export.package import Finding, Package
from qwen_export.package.audit import load_graph
from qwen_export.runtime.genai import CONFIG_FILE, read_genai_config

SECTIONS = {DECODER: "decoder", TEXT: "decoder", EMBEDDING: "embedding", VISION_ENCODER: "vision"}
"""Component -> section of genai_config.json."""


def audit_genai_files(package: Package, facts: TokenFacts) -> Iterator[Finding]:
    """Findings on genai_config.json, the processor file and the tokenizer folder."""
    model = read_genai_config(package)["model"]
    is_text = TEXT in package.components
    wanted = TEXT_TYPE if is_text else VLM_TYPE
    if model.get("type") != wanted:
        yield _finding("model", f"type is {model.get('type')!r}, for this package it is {wanted!r}.")
    for component in package.components:
        section = model.get(SECTIONS[component])
        if isinstance(section, dict):
            yield from _section(package, component, section)
        else:
            yield _finding("model", f"has no section {SECTIONS[component]!r} for the {component}.")
    yield from _sizes(package, model)
    yield from facts.audit(model)
    if not is_text and isinstance(model.get("vision"), dict):
        yield from _processor(package, model["vision"])
    folder = model.get("tokenizer_dir")
    if folder is not None and not (package.folder / folder / "tokenizer.json").is_file():
        yield _finding("tokenizer", f"tokenizer_dir {folder!r} holds no tokenizer.json.")


def _section(package: Package, component: str, section: Mapping[str, Any]) -> Iterator[Finding]:
    expected = package.graph_path(component).relative_to(package.folder)
    if PurePosixPath(str(section.get("filename"))) != PurePosixPath(expected.as_posix()):
        yield _finding("file", f"the {component} is {expected.as_posix()}, not {section.get('filename')!r}.")
        return
    graph = load_graph(package.graph_path(component)).graph
    for side, values in (("inputs", graph.input), ("outputs", graph.output)):
        there = {value.name for value in values}
        named = _expand(package, section.get(side, {}))
        for name in sorted(named - there):
            yield _finding("wiring", f"{side} of the {component} name {name!r}, which the graph does not have.")
        for name in sorted(there - named):
            yield _finding("wiring", f"the {component} has {name!r} among its {side}, which is not named.")


def _expand(package: Package, names: Mapping[str, str]) -> set[str]:
    """The tensor names that a section comes to: plain ones, and templates for each layer that has such a state.

    GenAI derives the names of conv and recurrent states from the KV names.
    """
    specs = states(package.config.text, package.recipe.tensor_dtype)
    layers = {kind: [s.layer for s in specs if s.kind == kind] for kind in {s.kind for s in specs}}
    out: set[str] = set()
    for key, name in names.items():
        if "%d" not in name:
            out.add(name)
            continue
        kind = next((kind for kind in layers if kind.removesuffix("_state") in key), "key")
        out |= {name.replace("%d", str(layer)) for layer in layers[kind]}
        if key.endswith("_key_names"):
            prefix = name.removesuffix("key")
            for derived in ("conv_state", "recurrent_state"):
                out |= {f"{prefix}{derived}".replace("%d", str(layer)) for layer in layers.get(derived, [])}
    return out


def _sizes(package: Package, model: Mapping[str, Any]) -> Iterator[Finding]:
    text, decoder = package.config.text, model.get("decoder", {})
    for name, found, wanted in (
        ("vocab_size", model.get("vocab_size"), text.vocab_size),
        ("decoder.hidden_size", decoder.get("hidden_size"), text.hidden_size),
    ):
        if found != wanted:
            yield _finding("size", f"{name} is {found}, the graphs have {wanted}.")
    length, most = model.get("context_length"), context_length(package)
    if not isinstance(length, int) or not 0 < length <= most:
        holder = "the static cache holds" if package.recipe.static_length else "the model was made for"
        yield _finding("size", f"context_length is {length}, {holder} {most}.")


def _processor(package: Package, vision: Mapping[str, Any]) -> Iterator[Finding]:
    """The processor file must do what the checkpoint's preprocessor_config.json says."""
    name = str(vision.get("config_filename"))
    try:
        found = json.loads((package.folder / name).read_text(encoding="utf-8"))
        wanted = processor_config(package)
    except (OSError, ValueError) as error:
        yield Finding("processor", f"cannot be read ({error}).", name)
        return
    except PackageError as error:
        yield Finding("processor", str(error), name)
        return
    there = {step["operation"]["name"]: step["operation"] for step in found.get("processor", {}).get("transforms", [])}
    for step in wanted["processor"]["transforms"]:
        operation = step["operation"]
        if there.get(operation["name"]) != operation:
            yield Finding("processor", f"step {operation['name']} is not what the checkpoint's processor does.", name)


def _finding(rule: str, message: str) -> Finding:
    return Finding(rule, message, CONFIG_FILE)
