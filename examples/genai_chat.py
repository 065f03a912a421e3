"""Talk with a package in ONNX Runtime GenAI: text and pictures, several turns.

    qwen-export genai PACKAGE
    python examples/genai_chat.py PACKAGE [--provider cpu|cuda]

    > /image photo.jpg
    > What is in the picture?

Every turn is fed whole to a fresh generator: GenAI cannot take a picture in a running one, nor go on after an answer
that the token limit cut off. `Feeder` prepares tokens, pixels and grids with Transformers' own code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from qwen_export.errors import QwenExportError
from qwen_export.runtime.genai import Feeder, new_tokens, open_model
from qwen_export.runtime.prompt import Message


def answer(feeder: Feeder, model: object, conversation: list[Message], limit: int) -> str:
    """Stream one answer to stdout and return it."""
    prompt = feeder.prompt(conversation)
    tokens: list[int] = []
    shown = ""
    for token in new_tokens(feeder.generator(model, prompt, max_new_tokens=limit, do_sample=False)):
        tokens.append(token)
        text = feeder.decode(tokens)
        if not text.endswith("\ufffd"):  # half a character: wait for the rest of its bytes
            print(text[len(shown) :], end="", flush=True)
            shown = text
    print()
    return feeder.decode(tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description="Talk with a package in ONNX Runtime GenAI.")
    parser.add_argument("package", type=Path)
    parser.add_argument("--provider", choices=("cpu", "cuda"), help="default: the one that genai_config.json names")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    arguments = parser.parse_args()
    feeder = Feeder(arguments.package)
    model = open_model(arguments.package, provider=arguments.provider)
    conversation: list[Message] = []
    pictures: list[str] = []
    print("Type a message; /image FILE adds a picture to it, an empty line ends.", file=sys.stderr)
    while line := sys.stdin.readline().strip():
        if line.startswith("/image "):
            pictures.append(line.removeprefix("/image ").strip())
            continue
        parts = [{"type": "image", "image": picture} for picture in pictures]
        turn = {"role": "user", "content": [*parts, {"type": "text", "text": line}]}
        pictures = []
        try:
            said = answer(feeder, model, [*conversation, turn], arguments.max_new_tokens)
        except QwenExportError as error:  # the conversation stands as it was
            print(f"error: {error}", file=sys.stderr)
            continue
        conversation += [turn, {"role": "assistant", "content": said}]
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QwenExportError as error:
        sys.exit(f"error: {error}")
