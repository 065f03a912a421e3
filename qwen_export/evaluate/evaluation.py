"""The run: every system answers every chosen question; each answer is on disk before the next question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qwen_export.errors import InputError
from qwen_export.evaluate.ai2d import DATASET, Ai2d, Question
from qwen_export.evaluate.answers import Answerer, System
from qwen_export.evaluate.merge import merge_records
from qwen_export.evaluate.records import FILE_NAME, Record, RecordFile, read_records
from qwen_export.evaluate.report import PICTURES, write_report
from qwen_export.evaluate.scoring import LMMS_EVAL_COMMIT, MAX_NEW_TOKENS, is_right
from qwen_export.evaluate.summary import Summary, summarise


@dataclass(frozen=True)
class Step:
    """Where a run stands after an answer."""

    system: str
    done: int
    """Answers of this system, those of earlier runs included."""
    total: int
    right: int
    failed: int
    """Questions whose picture could not be used."""
    fresh: int
    """Answers that this process made."""


def evaluate(
    systems: Sequence[System],
    data: Ai2d,
    output: Path,
    *,
    selection: Sequence[int],
    resume: bool = False,
    max_new_tokens: int = MAX_NEW_TOKENS,
    on_step: Callable[[Step], None] | None = None,
) -> Summary:
    """Ask every system every chosen question, then write summary and report.

    The systems answer one after the other, so only one model is in memory at a time.

    Args:
        output: folder of the records, `summary.json`, `report.html` and the pictures that the report shows.
        selection: row numbers.
        resume: go on with the records in `output`; what is answered there is not asked again.
        on_step: called after each answer.
    """
    run = {
        "version": 1,
        "task": "ai2d",
        "dataset": DATASET,
        "data_revision": data.revision,
        "data_files": data.identity(),
        "rows": len(data),
        "protocol": f"lmms-eval {LMMS_EVAL_COMMIT}: ai2d, default prompt, flexible-extract, exact_match",
        "max_new_tokens": max_new_tokens,
        "thinking": False,
    }
    with RecordFile(output / FILE_NAME, run, resume=resume) as file:
        for system in systems:
            file.add_system({"name": system.name, **system.facts})
            _ask_all(system, data, file, selection, max_new_tokens, on_step)
        summary = summarise(file.records)
        keep_pictures(summary, data, output)
    write_report(output, summary, [output])
    return summary


def rescore(folders: Sequence[Path], output: Path) -> Summary:
    """Compute summary and report from records alone; several folders (shards) are merged.

    Raises:
        UsageError: the records are of different runs, or answer a question differently.
    """
    records = merge_records([(folder, read_records(folder / FILE_NAME)) for folder in folders])
    summary = summarise(records)
    output.mkdir(parents=True, exist_ok=True)
    write_report(output, summary, folders)
    return summary


def keep_pictures(summary: Summary, data: Ai2d, output: Path) -> None:
    """Save the picture of every question that the report shows, as it is in the data set."""
    for index in summary.shown:
        target = output / PICTURES / f"{index:05d}"
        if target.is_file():
            continue
        try:
            content = data.picture(index)
        except InputError:
            continue  # the report says so
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)


def _ask_all(
    system: System,
    data: Ai2d,
    file: RecordFile,
    selection: Sequence[int],
    max_new_tokens: int,
    on_step: Callable[[Step], None] | None,
) -> None:
    known = file.records.of(system.name)
    missing = [index for index in selection if index not in known]
    if not missing:
        return
    right = sum(record["right"] for record in known.values())
    failed = sum(record["failed"] is not None for record in known.values())
    answerer = system.open()
    try:
        for fresh, index in enumerate(missing, 1):
            record = _ask(system.name, answerer, data, data.questions[index], max_new_tokens)
            file.add_answer(record)
            right += record["right"]
            failed += record["failed"] is not None
            if on_step:
                on_step(Step(system.name, len(known) + fresh, len(known) + len(missing), right, failed, fresh))
    finally:
        answerer.close()


def _ask(system: str, answerer: Answerer, data: Ai2d, question: Question, max_new_tokens: int) -> Record:
    """One answer as a record; a picture that cannot be used is a failed answer, never a dropped one."""
    record: Record = {
        "system": system,
        "index": question.index,
        "question": question.text,
        "options": list(question.options),
        "target": question.target,
        "prompt_sha256": hashlib.sha256(question.prompt.encode("utf-8", errors="surrogatepass")).hexdigest(),
    }
    try:
        picture = data.picture(question.index)
        reply = answerer.answer(picture, f"row {question.index}", question.prompt, max_new_tokens)
    except InputError as error:
        return {**record, "failed": str(error), "right": False, "text": "", "tokens": [], "ended": True}
    return {**record, "failed": None, "right": is_right(reply.text, question.target), **asdict(reply)}
