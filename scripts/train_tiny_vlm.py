"""Train the tiny question-answering checkpoint that the tests, the demo and the README use.

A reduced qwen3_5 model (4.0 million parameters, both kinds of layer, a vision tower) learns to answer questions about
drawn diagrams: `tiny_vlm/questions.py` lists every kind of question, `tiny_vlm/scenes.py` what is drawn and what is
kept for the held-out questions. Eight minutes on one data-centre GPU are enough; on a CPU it runs, but learns little.

    python scripts/train_tiny_vlm.py --output tiny-vlm --minutes 8 --workers 13
    python scripts/train_tiny_vlm.py --output tiny-vlm --judge-only --trials 400
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_vlm.assets import END, IMAGE, PAD, VIDEO, VISION_END, VISION_START, VOCAB_SIZE, build_tokenizer, write_assets
from tiny_vlm.data import Source, Writer
from tiny_vlm.judging import Answerer, judge, report
from tiny_vlm.network import make_config, make_model
from tiny_vlm.training import Trainer, write_history
from tiny_vlm.trials import held_out_trials
from tokenizers import Tokenizer


def main() -> int:
    """Train, save, and ask held-out questions."""
    args = _arguments()
    begun = time.monotonic()
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # Eight bits more than bfloat16 in the matrix products; the saved weights are bfloat16 anyway.
    torch.set_float32_matmul_precision("high")
    if not args.judge_only:
        _train(args, device)
    text = _judge(args, device, begun)
    print(text, flush=True)
    (args.output.parent / f"{args.output.name}.report.txt").write_text(text + "\n", encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the tiny question-answering checkpoint.")
    parser.add_argument("--output", type=Path, required=True, help="Folder of the checkpoint.")
    parser.add_argument("--minutes", type=float, default=8.0, help="Training time; saving and judging come after it.")
    parser.add_argument("--judge-minutes", type=float, default=1.0, help="Time for the held-out questions.")
    parser.add_argument("--trials", type=int, default=200, help="Held-out questions, half of them multiple choice.")
    parser.add_argument("--groups", type=int, default=6, help="Picture sizes in a batch.")
    parser.add_argument("--pictures", type=int, default=44, help="Pictures of each size in a batch.")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 3), help="Data processes.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cuda or cpu; by default what is there.")
    parser.add_argument("--state", type=Path, help="Where the run's state is saved; by default OUTPUT.state.pt.")
    parser.add_argument("--resume", action="store_true", help="Go on from the saved state.")
    parser.add_argument("--start-from", type=Path, help="Refine the weights of this checkpoint instead of new ones.")
    parser.add_argument("--judge-only", action="store_true", help="Only ask the held-out questions.")
    args = parser.parse_args()
    args.state = args.state or args.output.parent / f"{args.output.name}.state.pt"
    return args


def _train(args: argparse.Namespace, device: torch.device) -> None:
    tokenizer = Tokenizer.from_file(str(args.start_from / "tokenizer.json")) if args.start_from else build_tokenizer()
    names = {"image": IMAGE, "video": VIDEO, "vision_start": VISION_START, "vision_end": VISION_END}
    ids = {name: tokenizer.token_to_id(token) for name, token in (names | {"end": END, "pad": PAD}).items()}
    writer = Writer(tokenizer)
    trainer = Trainer(make_model(make_config(VOCAB_SIZE, ids), args.seed), writer.start, writer.pad, device)
    first = 0
    if args.start_from:
        trainer.refine(load_file(args.start_from / "model.safetensors", device=str(device)))
    if args.resume:
        state = torch.load(args.state, map_location=device, weights_only=True)
        trainer.restore(state)
        first = state["next_group"]
        print(f"resumed at step {trainer.progress.step}, {trainer.progress.seconds:.0f} s", flush=True)
    write_assets(args.output, tokenizer)
    source = Source(tokenizer, args.workers, args.seed, first)

    def save() -> None:
        _save(trainer, args.output)
        spare = args.state.with_suffix(".new")
        torch.save(trainer.state(source), spare)
        os.replace(spare, args.state)
        write_history(args.output.parent / f"{args.output.name}.history.tsv", trainer.progress)

    settings = {"groups": args.groups, "pictures": args.pictures}
    try:
        trainer.run(source, settings, args.minutes * 60, save)
    finally:
        source.close()


def _save(trainer: Trainer, folder: Path) -> None:
    """Config and weights in the official layout: bfloat16, under the names of the released checkpoints."""
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous().cpu() for name, tensor in trainer.model.state_dict().items()
    }
    spare = folder / "model.safetensors.new"
    save_file(tensors, spare, metadata={"format": "pt"})
    os.replace(spare, folder / "model.safetensors")
    config = trainer.model.config.to_dict()
    config["architectures"] = ["Qwen3_5ForConditionalGeneration"]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _judge(args: argparse.Namespace, device: torch.device, begun: float) -> str:
    torch.set_float32_matmul_precision("highest")
    answerer = Answerer(args.output, device)
    trials = held_out_trials(args.trials, args.seed)
    limit = time.monotonic() + args.judge_minutes * 60

    def more() -> bool:
        return args.judge_only or time.monotonic() < limit

    with_picture = judge(answerer, trials, more=more)
    blind = judge(answerer, trials if args.judge_only else trials[: max(20, args.trials // 4)], blind=True, more=more)
    return "\n".join(
        [
            report("held-out questions, through Transformers", with_picture),
            report("the same without the picture", blind),
            f"{time.monotonic() - begun:.0f} s in all on {device}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
