"""Anything that brim can judge becomes a diagnosis; anything else a clear error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.report import examples

from brim.cli.load import judge_anew, load_diagnosis
from brim.errors import BrimError, InputError, UsageError
from brim.record import findings

RECORDED = Path(__file__).parents[1] / "fixtures" / "runs" / "cpu-main-process"


def test_a_findings_file_is_found_by_name_by_content_and_in_its_run(tmp_path: Path) -> None:
    wanted = examples.input_bound()
    for path in (tmp_path / "findings.json", tmp_path / "renamed.json"):
        findings.write(path, wanted)
        assert load_diagnosis([path]) == wanted
    assert load_diagnosis([tmp_path]) == wanted


def test_a_findings_file_with_its_keys_sorted_is_still_one(tmp_path: Path) -> None:
    path = tmp_path / "sorted.json"
    data = json.loads(findings.encode(examples.healthy()))
    path.write_text(json.dumps(data, sort_keys=True))
    assert load_diagnosis([path]) == examples.healthy()


def test_no_path_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="nothing to read"):
        load_diagnosis([])


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.json: no such file"):
        load_diagnosis([tmp_path / "gone.json"])


def test_a_verdict_among_several_paths_is_wrong_usage(tmp_path: Path) -> None:
    findings.write(tmp_path / "findings.json", examples.healthy())
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(UsageError, match="is a verdict, and several paths were given"):
        load_diagnosis([tmp_path / "trace.json", tmp_path / "findings.json"])


def test_a_damaged_findings_file_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    path.write_bytes(findings.encode(examples.healthy())[:-40])
    with pytest.raises(InputError, match=r"findings.json: not a findings.json \("):
        load_diagnosis([path])


@pytest.mark.parametrize("content", [b"", b"\x00" * 300, b"hello", b"[1, 2]", b'{"a": 1}', b'"x"'])
def test_a_file_that_is_nothing_of_this_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "what.json"
    path.write_bytes(content)
    with pytest.raises(BrimError, match=r"what\.json"):
        load_diagnosis([path])


def test_an_empty_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BrimError, match=str(tmp_path)):
        load_diagnosis([tmp_path])


def test_an_unjudged_run_is_judged_and_then_read(tmp_path: Path) -> None:
    from brim.record.run import create, is_run

    folder = create(tmp_path, ["python", "train.py"], {}, "0")
    assert is_run(folder)
    first = load_diagnosis([folder])
    assert first.window.steps == 0
    if (folder / "findings.json").exists():
        assert load_diagnosis([folder]) == first


@pytest.mark.slow
def test_a_folder_of_8_public_traces_becomes_one_diagnosis(shared: Path) -> None:
    folder = shared / "traces" / "param_dlrm_v100_8rank"
    assert load_diagnosis([folder]).window.ranks == 8


def test_a_warmup_is_left_out_of_a_run_judged_anew_and_refused_for_what_has_no_steps(
    tmp_path: Path,
) -> None:
    run = shutil.copytree(RECORDED, tmp_path / "run")
    assert judge_anew([run]).window.steps == 21  # 5 of 26 are not steady yet
    assert judge_anew([run], warmup=20).window.steps == 6
    assert findings.read(run / "findings.json").window.steps == 6
    with pytest.raises(UsageError, match=r"findings\.json is no run directory"):
        judge_anew([run / "findings.json"], warmup=20)
