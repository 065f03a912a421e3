"""The run: records, resuming after a kill, comparison, shards, failed pictures and the report."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from qwen_export.errors import InputError, UsageError
from qwen_export.evaluate import Ai2d, Step, evaluate, rescore, select
from qwen_export.evaluate.records import FILE_NAME, read_records
from tests.evaluate.answering import fixed_system

ROOT = Path(__file__).resolve().parents[2]


def ask(dataset: Path, output: Path, *systems: Any, **options: Any) -> Any:
    data = Ai2d(dataset)
    return evaluate(systems, data, output, selection=options.pop("selection", select(len(data))), **options)


def test_two_systems_are_scored_and_compared(dataset: Path, tmp_path: Path) -> None:
    steps: list[Step] = []
    summary = ask(dataset, tmp_path, fixed_system("one"), fixed_system("two", 1), on_step=steps.append)
    assert [s.name for s in summary.systems] == ["one", "two"] and len(steps) == 24
    assert steps[-1].done == steps[-1].total == 12 and steps[-1].right == summary.systems[1].right
    pair = summary.comparisons[0]
    assert pair.asked == 12 == pair.both_right + pair.only_first + pair.only_second + pair.both_wrong
    assert 0 < len(pair.disagreements) == 12 - pair.same_tokens < 12
    case = pair.disagreements[0]
    answers = {name: summary.answers[name][case.index] for name in ("one", "two")}
    first, second = answers["one"], answers["two"]
    assert first["tokens"][: case.step] == second["tokens"][: case.step]
    assert first["tokens"][case.step] != second["tokens"][case.step]
    assert case.first.margin == first["margins"][case.step] and case.second.margin == second["margins"][case.step]
    for system in summary.systems:
        invalid = [i for i, r in summary.answers[system.name].items() if r["text"] == "none of them"]
        assert list(system.invalid) == invalid
        assert all(not summary.answers[system.name][i]["right"] for i in invalid)
        assert system.seconds == {"preprocess": 0.001, "prefill": 0.002, "decode": 0.003, "total": 0.006}


def test_the_summary_comes_from_the_records_alone(dataset: Path, tmp_path: Path) -> None:
    summary = ask(dataset, tmp_path / "run", fixed_system("one"), fixed_system("two", 1))
    again = rescore([tmp_path / "run"], tmp_path / "again")
    assert again == summary
    pages = [(tmp_path / name / "report.html").read_text(encoding="utf-8") for name in ("run", "again")]
    assert pages[0] == pages[1] and pages[0].count("data:image/png;base64,") >= len(summary.shown)
    assert "http" not in pages[0]
    lines = (tmp_path / "run" / FILE_NAME).read_text(encoding="utf-8").splitlines()
    changed = [line.replace('"text": "none of them"', '"text": "A"') for line in lines]
    (tmp_path / "changed").mkdir()
    (tmp_path / "changed" / FILE_NAME).write_text("\n".join(changed) + "\n", encoding="utf-8")
    assert rescore([tmp_path / "changed"], tmp_path / "changed").systems[0].invalid == ()


def test_shards_merge_to_the_whole(dataset: Path, tmp_path: Path) -> None:
    systems = fixed_system("one"), fixed_system("two", 1)
    whole = ask(dataset, tmp_path / "whole", *systems)
    folders = [tmp_path / f"part{i}" for i in (1, 2, 3)]
    for i, folder in enumerate(folders, 1):
        ask(dataset, folder, *systems, selection=select(12, shard=f"{i}/3"))
    merged = rescore(folders, tmp_path / "merged")
    assert merged == whole
    page = (tmp_path / "merged" / "report.html").read_text(encoding="utf-8")
    assert page == (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    ask(dataset, tmp_path / "other", fixed_system("one", 5), selection=[0])
    with pytest.raises(UsageError, match="one is another system there: salt was 0, now it is 5"):
        rescore([folders[0], tmp_path / "other"], tmp_path / "merged")


def test_a_run_is_not_mixed_with_another(dataset: Path, tmp_path: Path) -> None:
    ask(dataset, tmp_path, fixed_system("one"), selection=[0, 1])
    with pytest.raises(UsageError, match="already holds an evaluation"):
        ask(dataset, tmp_path, fixed_system("one"))
    with pytest.raises(UsageError, match="one was another system: salt was 0, now it is 3"):
        ask(dataset, tmp_path, fixed_system("one", 3), resume=True)
    with pytest.raises(UsageError, match="max_new_tokens was 16, now it is 8"):
        ask(dataset, tmp_path, fixed_system("one"), resume=True, max_new_tokens=8)
    wider = ask(dataset, tmp_path, fixed_system("one"), fixed_system("two", 1), resume=True, selection=[0, 1, 2])
    assert [system.asked for system in wider.systems] == [3, 3]


def test_an_unusable_picture_is_a_failed_answer(tmp_path: Path, dataset: Path) -> None:
    table = pyarrow.parquet.read_table(next((dataset / "data").glob("*.parquet"))).slice(0, 3).to_pydict()
    table["image"][1] = {"bytes": b"<html>not found</html>", "path": "1.png"}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "test-0.parquet")
    summary = ask(tmp_path, tmp_path / "out", fixed_system("one"), fixed_system("two", 1))
    assert [system.failed for system in summary.systems] == [(1,), (1,)]
    assert all(system.asked == 3 and 1 not in system.invalid for system in summary.systems)
    assert 1 not in [case.index for case in summary.comparisons[0].disagreements]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "failed: row 1: not a picture." in page and "bytes that are no picture" in page


def test_a_torn_line_is_cut_off_and_a_damaged_one_refused(dataset: Path, tmp_path: Path) -> None:
    ask(dataset, tmp_path, fixed_system("one"))
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for cut in (1, 7, 200):
        path.write_bytes(whole[:-cut])
        assert len(read_records(path).answers) == 11
        resumed = ask(dataset, tmp_path, fixed_system("one"), resume=True)
        assert resumed.systems[0].asked == 12 and path.read_bytes() == whole
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], lines[4][:20] + b"\n", *lines[5:]]))
    with pytest.raises(InputError, match="line 5 is damaged"):
        ask(dataset, tmp_path, fixed_system("one"), resume=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    with pytest.raises(InputError, match="answers question 11 a second time"):
        ask(dataset, tmp_path, fixed_system("one"), resume=True)


def test_a_run_killed_ten_times_gives_the_records_of_an_unbroken_one(dataset: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.evaluate.answering", str(dataset)]
    subprocess.run([*command, str(tmp_path / "whole")], cwd=ROOT, check=True)
    broken, rng, kills = tmp_path / "broken" / FILE_NAME, random.Random(0), 0
    targets = sorted(rng.sample(range(1, 26), 10))
    for lines in targets:
        process = subprocess.Popen([*command, str(broken.parent)], cwd=ROOT)
        while process.poll() is None and (not broken.is_file() or broken.read_bytes().count(b"\n") < lines):
            time.sleep(0.0005)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills >= 8, "the run was over before it could be killed"
    subprocess.run([*command, str(broken.parent)], cwd=ROOT, check=True)
    assert broken.read_bytes() == (tmp_path / "whole" / FILE_NAME).read_bytes()
    summaries = [json.loads((tmp_path / name / "summary.json").read_text("utf-8")) for name in ("whole", "broken")]
    assert summaries[0] == summaries[1]
