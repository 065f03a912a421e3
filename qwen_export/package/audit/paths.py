"""No absolute path anywhere: not in a graph's strings, not in a text file. They would publish somebody's folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import onnx

from qwen_export.package.audit.operators import walk
from qwen_export.package.audit.report import Finding
from qwen_export.package.graphs import NODE_METADATA

_ROOTS = (
    "home|Users|root|tmp|var|mnt|opt|usr|srv|etc|data|work|workspace|workspaces|content|private|media|Volumes|scratch|"
    "nfs|run|dev|builds|app|kaggle|dbfs|storage"
)
_KNOWN_PLACE = re.compile(rf"(?<![\w.:/-])/(?:{_ROOTS})/[\w.@~+-]|file://|(?<![A-Za-z0-9])[A-Za-z]:[\\/](?!/)\w|\\\\\w")
"""A path below a usual root, a file URL, a Windows drive or share; for text in which other slashes are normal."""
_WHOLE_PATH = re.compile(r"/[\w.@~+-]+(?:/[\w.@~+ -]+)*/?|~[\w-]*/.*")
"""A string that is an absolute path from end to end, wherever it may lead."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "merges.txt")
"""Files full of word pieces, path-like ones among them; nothing in them is a path."""


def leaked_path(text: str, *, free_text: bool = False) -> str | None:
    """The absolute path in a string, or None. In free text only paths below a usual root are recognised."""
    if not free_text and _WHOLE_PATH.fullmatch(text.strip()):
        return text
    found = _KNOWN_PLACE.search(text)
    return text[found.start() : found.start() + 80] if found else None


def check_graph_strings(file: str, model: onnx.ModelProto) -> Iterator[Finding]:
    """Findings on metadata, doc strings, names and string attributes of a graph."""
    yield from _metadata(file, "", model.metadata_props, ())
    yield from _text(file, "", model.doc_string, model.producer_name, model.producer_version, model.domain)
    for graph in walk(model.graph):
        yield from _metadata(file, graph.name, graph.metadata_props, ())
        yield from _text(file, graph.name, graph.doc_string)
        yield from _names(file, graph.name, graph.name)
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield from _metadata(file, value.name, value.metadata_props, ())
            yield from _text(file, value.name, value.doc_string)
            yield from _names(file, value.name, value.name)
        for tensor in graph.initializer:
            yield from _tensor(file, tensor.name, tensor)
        for node in graph.node:
            yield from _metadata(file, node.name, node.metadata_props, NODE_METADATA)
            yield from _text(file, node.name, node.doc_string)
            yield from _names(file, node.name, node.name, *node.output)
            for attribute in node.attribute:
                strings = [attribute.s, *attribute.strings]
                yield from _text(file, node.name, attribute.doc_string, *(s.decode(errors="replace") for s in strings))
                if attribute.HasField("t"):
                    yield from _tensor(file, node.name, attribute.t)


def check_text_file(folder: Path, path: str, *, ours: bool) -> Iterator[Finding | str]:
    """Findings on a text file that we write; a note (a plain string) for a file that came with the checkpoint.

    The checkpoint's files are carried on byte for byte, so a path in them is the user's to remove there.
    """
    if PurePosixPath(path).name in VOCABULARIES:
        return
    try:
        text = (folder / path).read_text(encoding="utf-8")
        document = json.loads(text) if path.endswith(".json") else None
    except (OSError, ValueError, RecursionError) as error:
        yield Finding("unreadable", f"cannot be read as text ({error}).", path)
        return
    found = leaked_path(text, free_text=True) if document is None else _first_leak(document)
    if found is None:
        return
    if ours:
        yield Finding("path", f"holds the absolute path {found!r}.", path)
    else:
        yield f"{path} came with the checkpoint and holds the absolute path {found!r}; the package carries it on."


def _first_leak(document: Any) -> str | None:
    stack = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, str):
            found = leaked_path(item, free_text="\n" in item)
            if found:
                return found
    return None


def _metadata(file: str, node: str, props: Any, allowed: tuple[str, ...]) -> Iterator[Finding]:
    for entry in props:
        if entry.key not in allowed:
            yield Finding("metadata", f"carries the metadata key {entry.key!r}.", file, node)
        yield from _text(file, node, entry.key, entry.value)


def _tensor(file: str, node: str, tensor: onnx.TensorProto) -> Iterator[Finding]:
    yield from _metadata(file, node, tensor.metadata_props, ())
    yield from _text(file, node, tensor.doc_string)
    yield from _names(file, node, tensor.name)


def _text(file: str, node: str, *texts: str) -> Iterator[Finding]:
    for text in texts:
        found = leaked_path(text) if text else None
        if found:
            yield Finding("path", f"holds the absolute path {found!r}.", file, node)


def _names(file: str, node: str, *names: str) -> Iterator[Finding]:
    for name in names:
        found = leaked_path(name, free_text=True) if "/" in name or "\\" in name else None
        if found:
            yield Finding("path", f"is named after the absolute path {found!r}.", file, node)
