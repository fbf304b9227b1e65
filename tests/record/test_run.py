"""The run directory: its name, its secrecy, and reading what is there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.record import run as runs
from brim.record.run import create, finish, is_run, read_run, scrub


def _create(root: Path, *command: str) -> Path:
    return create(root, command or ("python", "train.py"), {"cores": 2}, "0.1")


def _info(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_bytes())
    return found


# ---------------------------------------------------------------------------------- the folder


def test_only_its_owner_can_read_a_run_directory_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = _create(tmp_path / "runs")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_runs_of_the_same_second_get_two_folders(tmp_path: Path) -> None:
    folders = {_create(tmp_path) for _ in range(5)}
    assert len(folders) == 5
    assert all(is_run(f) for f in folders)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1e-5", "train"),
        ("python -m my.train --x", "my-train"),
        ("torchrun --nproc-per-node 8 src/sft_vl.py", "sft_vl"),
        ("bash run.sh", "run"),
        ("swift sft --model Qwen/Qwen3-VL-4B", "sft"),
        ("llamafactory-cli train config.yaml", "config"),
        ("./job", "job"),
        ("runner hf_abcdefghijklmnop", "runner"),
        ("tool --api-key sk-abcdefghijklmnop go", "go"),
        ("ünïcode/trän.py", "tr-n"),
    ],
)
def test_a_folder_is_named_after_what_trains_and_never_after_a_secret(
    command: str, name: str, tmp_path: Path
) -> None:
    assert _create(tmp_path, *command.split()).name[20:] == name


def test_run_json_knows_the_end_only_after_the_end(tmp_path: Path) -> None:
    folder = _create(tmp_path)
    assert (_info(folder)["exit_code"], _info(folder)["wall_s"]) == (None, None)
    finish(folder, exit_code=3, wall_s=1.5)
    assert (_info(folder)["exit_code"], _info(folder)["wall_s"]) == (3, 1.5)
    assert _info(folder)["host"] == {"cores": 2}


def test_a_full_disk_at_the_end_leaves_run_json_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _create(tmp_path)
    before = (folder / "run.json").read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs, "write_atomic", full)
    finish(folder, exit_code=0, wall_s=1.0)
    assert (folder / "run.json").read_bytes() == before


# ---------------------------------------------------------------------------------- secrets

_TOKEN = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", min_size=16)
_KEYS = st.sampled_from(
    ["api-key", "hub_token", "WANDB_API_KEY", "password", "aws-secret-access-key", "auth",
     "tokenizer_auth_token", "db.credentials", "HF_TOKEN", "passphrase", "tokens"]
)  # fmt: skip


@given(_KEYS, _TOKEN.filter(lambda t: not t.isdigit()), st.integers(0, 5))
def test_the_value_of_a_flag_that_names_a_secret_is_never_kept(
    key: str, token: str, way: int
) -> None:
    command = {
        0: ["python", "t.py", f"--{key}", token],
        1: ["python", "t.py", f"--{key}={token}"],
        2: ["env", f"{key}={token}", "python", "t.py"],
        3: ["python", "t.py", f'{{"{key}": "{token}", "lr": 1}}'],
        4: ["curl", "-H", f"{key}: Bearer {token}"],
        5: ["get", f"https://host/data?part=1&{key}={token}&x=2"],
    }[way]
    assert token not in " ".join(scrub(command))


@given(
    st.sampled_from(["hf_", "sk-", "sk-ant-", "ghp_", "github_pat_", "glpat-", "xoxb-", "AKIA"]),
    _TOKEN,
    st.sampled_from(["{}", "x={}", "--lr {}", "a,{},b", "login('{}')"]),
)
def test_what_looks_like_a_token_is_never_kept_wherever_it_stands(
    prefix: str, token: str, place: str
) -> None:
    assert token not in " ".join(scrub(["run", place.format(prefix + token)]))


@given(st.text("abcdefgh:@!%$.", min_size=8).filter(lambda t: "@" not in t[-1:]))
@example("user:p@ss@word")
def test_the_login_of_an_address_is_never_kept(login: str) -> None:
    clean = scrub(["git+https://" + login + "@host.org/a/b.git"])
    assert clean == ["git+https://***@host.org/a/b.git"]


@pytest.mark.parametrize(
    "word",
    [
        "python", "--tokenizer=Qwen/Qwen3-VL-4B", "--tokenize", "--max_tokens=4096", "lr=1e-5",
        "data.tokens_per_row=12288", "https://host.org/data.tar?part=3", "--out=/runs/a@b",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays_so_that_a_command_can_be_repeated(word: str) -> None:
    assert scrub([word]) == [word]


def test_a_flag_without_a_value_hides_no_other_flag() -> None:
    command = ["x", "--use-auth", "--lr", "1", "--max-tokens", "4096", "--tokenizer", "t"]
    assert scrub(command) == command


def test_the_command_in_run_json_is_scrubbed(tmp_path: Path) -> None:
    folder = _create(tmp_path, "python", "t.py", "--hf-token", "abc123def456")
    assert b"abc123def456" not in (folder / "run.json").read_bytes()


# ---------------------------------------------------------------------------------- reading


def _process(folder: Path, pid: int, rank: int, clocks: list[str], *, t: float = 0.0) -> None:
    lines: list[dict[str, Any]] = [{"kind": "header", "pid": pid, "rank": rank, "t": t}]
    lines += [{"n": n, "t": float(n), "wall": 1.0, "clock": c} for n, c in enumerate(clocks)]
    path = folder / f"steps.rank{rank}.{pid}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_of_a_ranks_processes_the_one_that_trained_is_its_process(tmp_path: Path) -> None:
    folder = _create(tmp_path)
    _process(folder, 10, 0, ["loader"] * 9)  # an evaluation beside it: many batches, no step
    _process(folder, 11, 0, ["opt0"] * 4)
    _process(folder, 12, 1, ["opt0"] * 4)
    found = read_run(folder)
    assert [(p.header.rank, p.header.pid) for p in found.processes] == [(0, 11), (1, 12)]


def test_workers_lines_from_before_the_process_began_are_another_story(tmp_path: Path) -> None:
    folder = _create(tmp_path)
    _process(folder, 11, 0, ["opt0"] * 3, t=100.0)
    lines = [{"pid": 20, "t": 99.0}, {"pid": 21, "t": 101.0}]
    (folder / "workers.rank0.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert [w.pid for w in read_run(folder).workers[0]] == [21]


def test_a_run_in_which_nothing_trained_is_read_as_a_run_without_processes(tmp_path: Path) -> None:
    found = read_run(_create(tmp_path))
    assert (found.processes, found.recording, found.traces) == ([], None, [])


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ([], "hooks were loaded in no process"),
        (["python", "python"], "torch was never imported"),
        (["python", "torch"], "no optimizer step, backward pass or loader batch"),
    ],
)
def test_a_run_in_which_nothing_trained_says_how_far_the_hooks_came(
    kinds: list[str], why: str, tmp_path: Path
) -> None:
    folder = _create(tmp_path)
    if kinds:
        lines = [json.dumps({"kind": kind, "pid": 1}) + "\n" for kind in kinds]
        (folder / "processes.jsonl").write_text("".join(lines))
    assert why in read_run(folder).notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no run directory"),
        (b"{", "cannot be read"),
        (b'{"command": 3}', "cannot be read"),
        (b"\xff\xff", "cannot be read"),
    ],
)
def test_a_folder_that_is_no_run_is_named_in_one_line(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_run(tmp_path)
    assert str(tmp_path) in str(error.value)
