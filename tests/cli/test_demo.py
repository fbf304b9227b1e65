"""``brim demo``: the scripts it ships, the story it tells, and what it says when it cannot."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.report.test_ladder import example, nothing_kept

from brim.cli import demo
from brim.cli.main import main
from brim.diagnose import remedies
from brim.errors import BrimError
from brim.record import findings
from brim.record.findings import Diagnosis, Entry, Finding, Where, Window
from brim.record.ladder import encode, read
from brim.record.run import create

FILES = Path(demo.__file__).parent / "demo_files"


def load(name: str) -> ModuleType:
    """A shipped script as a module."""
    loader = importlib.machinery.SourceFileLoader(f"demo_{name}", str(FILES / f"{name}.py.in"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def diagnosis(cause: str = demo.PLANTED, *, share: float = 0.5, step_s: float = 0.2) -> Diagnosis:
    """80 steps, about as long as ``step_s``, of which ``cause`` takes ``share``."""
    walls = [step_s * (1 + 0.01 * (i % 5)) for i in range(80)]
    finding = Finding(
        cause=cause, share=share, gain=(1.2, 2.0), confidence="high", evidence=["it was seen"],
        where=Where(file="finetune.py", line=3), remedies=remedies.for_cause(cause, {}),
    )  # fmt: skip
    return Diagnosis(
        window=Window(steps=80, wall_s=sum(walls), ranks=1),
        account=[
            Entry(part="useful", cause="compute", share=1 - share),
            Entry(part="idle", cause=cause, share=share),
        ],
        findings=[finding] if share >= 0.05 else [],
        frameworks=["hf-trainer", "torch"],
        metrics={"step_s": step_s, "input_wait": share},
        details={"steps": [{"rank": 0, "wall_us": wall * 1e6} for wall in walls]},
    )


class Told:
    """A story whose commands are not run: they leave the given verdicts."""

    def __init__(self, folder: Path, *verdicts: Diagnosis) -> None:
        self.commands: list[list[str]] = []
        self.verdicts = list(verdicts)
        self.ladder = example()
        self.out = io.StringIO()
        quiet = Console(file=io.StringIO())
        self.story = demo.Story(folder, Console(file=self.out, width=80), quiet)
        self.folder = folder

    def run(self, command: list[str], *_: Any, **__: Any) -> None:
        self.commands.append(command)
        if "train" in command:
            self.train()
        if "--json" not in command:
            return
        target = self.folder / command[command.index("--json") + 1]
        if "tune" in command:
            target.write_bytes(encode(self.ladder))
        else:
            findings.write(target, self.verdicts.pop(0))

    def train(self) -> None:
        """Ten steps of 0.2 s with four samples each, a fifth of it waiting for rows."""
        folder = create(self.folder / "trained" / "records", ["brim", "train"], {}, "0")
        lines: list[dict[str, Any]] = [{"kind": "header", "pid": 1, "t": 0.0}]
        content = {"documents": 4, "tokens": 100, "pad_tokens": 5, "batches": 1, "backward": 0.16}
        for n in range(10):
            step = {"n": n, "t": 0.2 * (n + 1), "wall": 0.2, "clock": "opt0", "input_wait": 0.04}
            lines.append(step | content | {"counted_batches": 1})
        written = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "steps.rank0.jsonl").write_text(written)
        losses = ({"step": n, "loss": 5.0 - n / 2} for n in range(1, 9))
        metrics = "".join(json.dumps(line) + "\n" for line in losses)
        (folder / "metrics.jsonl").write_text(metrics + '{"step": 8, "eval_loss": 9.0}\n')

    def tell(self, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr(self.story, "run", self.run)
        return self.story.tell()

    @property
    def said(self) -> str:
        return " ".join(self.out.getvalue().split())


def test_the_diagnosed_command_is_the_one_that_is_tuned_and_its_ladder_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(tmp_path, diagnosis())
    assert told.tell(monkeypatch) == 0
    _, diagnosed, tuned, _, _ = told.commands
    assert diagnosed[diagnosed.index("--") :] == tuned[tuned.index("--") :]
    assert "--workers" not in tuned
    assert "$ brim diagnose --json before.json -- python finetune.py" in told.said
    assert "$ brim tune --budget 100s --steps 30" in told.said
    assert "2.00× as fast (1.90–2.10×, 99 %), 600 ms a step instead of 1.2 s" in told.said


def test_the_story_ends_with_brim_train_and_what_its_records_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = msgspec.structs.replace(
        diagnosis(), metrics={"step_s": 0.2, "input_wait": 0.5, "samples_per_s": 7.5}
    )
    told = Told(tmp_path, first)
    assert told.tell(monkeypatch) == 0
    *_, prepared, trained = told.commands
    assert prepared[1:] == ["prepare.py", "photos", "60"]
    assert trained[1:] == ["-m", "brim", "train", "sft.toml"]
    assert "$ brim train sft.toml" in told.said
    assert "in packed rows: 20.0 samples/s" in told.said
    assert "Loss 4.50 at first, 1.00 at last; 20.0 % of the time waiting for input" in told.said
    assert "5.0 % padding" in told.said


def test_the_shipped_scripts_make_a_model_and_chats_that_brim_train_learns_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("photographs", "finetune", "prepare"):
        (tmp_path / f"{name}.py").write_text((FILES / f"{name}.py.in").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, steps in (("photographs", "4"), ("prepare", "6")):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "photos", steps])
        runpy.run_path(f"{name}.py", run_name="__main__")
    monkeypatch.delitem(sys.modules, "finetune")
    assert main(["train", "sft.toml"]) == 0
    (metrics,) = tmp_path.glob("trained/records/*/metrics.jsonl")
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.3
    assert (tmp_path / "trained" / "model" / "model.safetensors").exists()


def test_the_line_that_the_verdict_names_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = diagnosis()
    place = Where(file=str(tmp_path / "finetune.py"), line=1)
    found = msgspec.structs.replace(first.findings[0], where=place)
    told = Told(tmp_path, msgspec.structs.replace(first, findings=[found]))
    told.tell(monkeypatch)
    assert 'Line 1 of finetune.py is: """Fine-tunes a small Qwen3-VL' in told.said


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_another_verdict_than_the_planted_fault_is_told_as_it_is(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(tmp_path, diagnosis("host.gc", share=share))
    assert told.tell(monkeypatch) == 1
    assert len(told.commands) == 2, "nothing is cured that was not named"
    named = "host.gc" if share >= 0.05 else "no finding"
    assert f"The planted fault is input.main-process, and the verdict is {named}" in told.said


def test_the_rate_counts_4_samples_a_step_over_the_whole_window() -> None:
    found = demo.with_rate(diagnosis(step_s=0.2))
    assert math.isclose(found.metrics["samples_per_s"], 4 * 80 / (80 * 0.204))
    assert "samples_per_s" not in demo.with_rate(
        msgspec.structs.replace(diagnosis(), window=Window(steps=0, wall_s=0.0, ranks=0))
    ).metrics  # fmt: skip


def run_dir(folder: Path, delay: float | None) -> Path:
    """A run of 20 steps of 0.2 s; the training thread waited ``delay`` of each for a core."""
    made = create(folder, ["python", "finetune.py"], {}, "0")
    more = {} if delay is None else {"run_delay": delay}
    rows = [{"n": i, "t": 0.2 * i, "wall": 0.2, "clock": "opt0", **more} for i in range(20)]
    lines = [json.dumps(row) + "\n" for row in ({"kind": "header", "pid": 7}, *rows)]
    (made / "steps.rank0.7.jsonl").write_text("".join(lines))
    return made


@pytest.mark.parametrize(("delay", "said"), [(0.1, "50% of the time"), (0.01, ""), (None, "")])
def test_a_training_thread_without_a_core_is_mentioned(
    delay: float | None, said: str, tmp_path: Path
) -> None:
    notes = demo.with_crowding(diagnosis(), run_dir(tmp_path, delay)).notes
    assert bool(notes) is bool(said)
    assert all(said in note for note in notes)


@pytest.mark.parametrize("disturbed", [True, False])
def test_runs_that_others_disturbed_are_to_be_repeated(
    disturbed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = diagnosis()
    if disturbed:
        note = "the training thread was ready, but without a core, 58% of the time: others"
        verdict = msgspec.structs.replace(verdict, notes=[note])
    told = Told(tmp_path, verdict)
    told.tell(monkeypatch)
    assert ("run this again when it is quiet" in told.said) is disturbed


def test_a_demo_whose_cure_did_not_help_says_so_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(tmp_path, diagnosis())
    told.ladder = nothing_kept()
    assert told.tell(monkeypatch) == 1
    assert "Nothing is kept" in told.said
    assert "run this again when it is quiet" in told.said


# ------------------------------------------------------------------------------- running


def story(folder: Path) -> demo.Story:
    return demo.Story(folder, Console(file=io.StringIO()), Console(file=io.StringIO()))


def test_a_script_that_fails_is_one_message_with_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('first'); raise SystemExit('no room for photographs')"]
    with pytest.raises(BrimError, match="ended with exit code 1") as error:
        story(tmp_path).run(command, "writing", 3, lambda: 0)
    assert "no room for photographs" in error.value.hint


def test_a_script_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LONGEST_S", 0.3)
    command = [
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(60)",
    ]
    with pytest.raises(BrimError, match="did not end"):
        story(tmp_path).run(command, "training", 3, lambda: 0)
    pid = int((tmp_path / "output.log").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_bar_counts_what_is_done_and_never_passes_the_end(tmp_path: Path) -> None:
    asked = []

    def done() -> int:
        asked.append(1)
        return 99

    story(tmp_path).run([sys.executable, "-c", ""], "training", 3, done)
    assert asked


# ------------------------------------------------------------------------- the command line


def test_a_folder_that_holds_something_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_path_that_is_a_file_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--keep", str(tmp_path / "file")]) == 2
    assert "cannot be used as a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "package"), [("PIL", "pillow"), ("torch", "torch"), ("accelerate", "accelerate")]
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == module else object())
    assert main(["demo"]) == 2
    said = capsys.readouterr().err
    assert f"needs the package {package}" in said
    assert "pip install 'brim[train]'" in said
    assert said.count("\n") == 2


@pytest.mark.parametrize("kept", [True, False])
def test_nothing_is_left_behind_unless_asked_for(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[Path] = []

    def tell(told: demo.Story) -> int:
        used.append(told.folder)
        (told.folder / "output.log").write_text("x")
        return 0

    monkeypatch.setattr(demo.Story, "tell", tell)
    words = ["demo", "--keep", str(tmp_path / "new" / "demo")] if kept else ["demo"]
    assert main(words) == 0
    assert used[0].exists() is kept
    assert ("Kept in" if kept else "Nothing was kept") in capsys.readouterr().out


# ----------------------------------------------------------------------------- the scripts


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "photos"
    script = FILES / "photographs.py.in"
    subprocess.run([sys.executable, script, folder, "5"], check=True)
    return folder


def test_photographs_have_half_to_one_megapixel_and_the_size_of_photographs(photos: Path) -> None:
    from PIL import Image

    for path in sorted(photos.glob("*.jpg")):
        with Image.open(path) as image:
            pixels = image.width * image.height
        assert 0.3e6 < pixels < 1.1e6
        assert 1 < path.stat().st_size * 8 / pixels < 5, "bits per pixel of a photograph"


def test_every_photograph_has_7_questions_and_its_answers_are_what_was_drawn(photos: Path) -> None:
    rows = [json.loads(line) for line in (photos / "questions.jsonl").read_text().splitlines()]
    assert len(rows) == 5 * 7
    module = load("photographs")
    shown = module.photograph(3)[1]
    answers = {r["question"]: r["answer"] for r in rows if r["image"] == "0003.jpg"}
    assert answers["How many things are in the picture?"] == f"There is {len(shown)}."
    for place, (colour, shape) in shown.items():
        assert answers[f"What is {place} of the picture?"] == f"{colour} {shape}."
    boxes = any(shape == "box" for _, shape in shown.values())
    assert answers["Is a box to be seen in the picture?"].startswith("Yes" if boxes else "No")


def test_the_same_photographs_come_every_time(photos: Path) -> None:
    again = io.BytesIO()
    load("photographs").photograph(2)[0].save(again, "JPEG", quality=92)
    assert again.getvalue() == (photos / "0002.jpg").read_bytes()


def test_a_run_ends_before_an_epoch_does() -> None:
    """The start of an epoch would be a second cause in a run that is to have one."""
    assert demo.PHOTOS * 7 >= demo.STEPS * demo.BATCH


def test_the_batch_fits_the_model_and_only_the_conversation_is_scored(photos: Path) -> None:
    module = load("finetune")
    tokenizer = module.make_tokenizer()
    data = module.Photographs(photos)
    batch = module.Collator(tokenizer)([data[0], data[9], data[20]])
    image = tokenizer.convert_tokens_to_ids(module.IMAGE)
    counts = (batch["input_ids"] == image).sum(1)
    assert counts.tolist() == [int(g.prod()) // 4 for g in batch["image_grid_thw"]]
    assert len(batch["pixel_values"]) == 4 * int(counts.sum())
    scored = batch["labels"] != -100
    assert not (scored & (batch["attention_mask"] == 0)).any()
    assert not (scored & (batch["input_ids"] == image)).any()
    text = tokenizer.decode(batch["input_ids"][0])
    assert "How many things" in text
    loss = module.make_model(tokenizer)(**batch).loss
    assert abs(float(loss.detach()) - math.log(len(tokenizer))) < 0.5, "an untrained model guesses"


def test_the_trap_is_no_line_of_the_script_but_a_default() -> None:
    """Without --workers, no word about workers reaches the Trainer."""
    text = (FILES / "finetune.py.in").read_text()
    assert text.count("dataloader_") == 2
    guarded = text[text.index("if args.workers is not None:") :].splitlines()[1]
    assert guarded.count("dataloader_") == 2


@pytest.mark.zoo
def test_the_whole_demo_names_the_fault_and_the_cure_takes_the_wait_away(tmp_path: Path) -> None:
    """The real thing: a training of 80 steps, and four or more of 40, in about two minutes."""
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "brim", "demo", "--keep", folder],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    before = findings.read(folder / "before.json")
    assert before.findings[0].cause == "input.main-process"
    where = before.findings[0].where
    assert where is not None
    assert where.file.endswith("finetune.py")
    ladder = read(folder / "ladder.json")
    assert [rung.cause for rung in ladder.rungs] == ["input.main-process"]
    waits = ladder.before.input_wait, ladder.rungs[0].figures.input_wait
    assert None not in waits
    assert waits[1] < waits[0] / 2  # type: ignore[operator]
    assert "--workers" in ladder.change.command
    assert "× as fast" in done.stdout
