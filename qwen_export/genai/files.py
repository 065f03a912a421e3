"""Write GenAI's files into a package. They are metadata: graphs and weights stay as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qwen_export.errors import PackageError
from qwen_export.genai.config import TOKENIZER_FOLDER, genai_config
from qwen_export.genai.processor import PROCESSOR_FILE, processor_config
from qwen_export.genai.tokens import TokenFacts
from qwen_export.package import ExportResult, Package, add_metadata_files, open_package
from qwen_export.runtime.genai import CONFIG_FILE
from qwen_export.runtime.preprocess import read_json, require_file
from qwen_export.weights import Progress

TOKENIZER_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast")
"""`tokenizer_class` values that GenAI 0.18.0 accepts. `Qwen3_5Tokenizer`, which Transformers 5 writes, is not one."""
TOKENIZER_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token", "model_max_length")
"""What GenAI's tokenizer reads of tokenizer_config.json besides the class."""


def add_genai_files(package: Package | str | Path, *, progress: Progress | None = None) -> ExportResult:
    """Add GenAI's files to a package, or write them anew.

    Raises:
        PackageError: the package is graph-only, incomplete, or its token ids would mislead GenAI.
    """
    opened = package if isinstance(package, Package) else open_package(package)
    return add_metadata_files(opened.folder, genai_files(opened), progress=progress)


def genai_files(package: Package) -> dict[str, bytes]:
    """Path in the package -> content of every file GenAI needs beyond the package's own."""
    check_complete(package)
    facts = TokenFacts(package)
    tokenizer = tokenizer_files(package)
    config = genai_config(package, facts, own_tokenizer=bool(tokenizer))
    findings = list(facts.audit(config["model"]))
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise PackageError(
            f"GenAI would answer wrongly from {package.folder}, without a word: {findings[0]}{more} Correct the "
            "checkpoint's tokenizer and config files and export again."
        )
    files = {CONFIG_FILE: to_json(config), **tokenizer}
    if "vision" in config["model"]:
        files[PROCESSOR_FILE] = to_json(processor_config(package))
    return files


def check_complete(package: Package) -> None:
    """Refuse a package that GenAI could not open: graph-only, or with a component missing."""
    package.require_weights("run in GenAI")
    missing = {"vision_encoder", "embedding", "decoder"} - set(package.components)
    if package.components != ("text",) and missing:
        raise PackageError(
            f"{package.folder} lacks {', '.join(sorted(missing))}; GenAI needs all three components. Export "
            "the missing one into it."
        )


def tokenizer_files(package: Package) -> dict[str, bytes]:
    """Tokenizer files in GenAI's form, empty where it accepts the package's own.

    The checkpoint's files stay byte for byte; GenAI is pointed to a copy whose class it knows. Both classes read the
    same tokenizer.json.
    """
    stated = read_json(require_file(package.folder, "tokenizer_config.json"))
    if stated.get("tokenizer_class") in TOKENIZER_CLASSES:
        return {}
    copy = {key: stated[key] for key in TOKENIZER_KEYS if stated.get(key) is not None}
    files = {
        "tokenizer.json": require_file(package.folder, "tokenizer.json").read_bytes(),
        "tokenizer_config.json": to_json({**copy, "tokenizer_class": TOKENIZER_CLASSES[0]}),
    }
    template = package.folder / "chat_template.jinja"
    if template.is_file():
        files[template.name] = template.read_bytes()
    elif stated.get("chat_template"):
        files["tokenizer_config.json"] = to_json(
            {**copy, "tokenizer_class": TOKENIZER_CLASSES[0], "chat_template": stated["chat_template"]}
        )
    return {f"{TOKENIZER_FOLDER}/{name}": content for name, content in files.items()}


def to_json(document: dict[str, Any]) -> bytes:
    """The document as the package's JSON files are written."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
