"""What the documents promise: commands that parse, links that lead somewhere, all options."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from brim.cli.main import VERBS
from brim.diagnose.causes import CAUSES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SYNOPSES = ("plan.md",)
"""Documents that show a command with its options in brackets."""
CHECKED = [p for p in DOCUMENTS if p.name not in SYNOPSES]
"""Documents whose commands can be typed as they stand."""


def code_lines(path: Path) -> list[str]:
    """The lines inside fences."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def commands() -> list[tuple[str, str]]:
    lines = ((p.name, line.removeprefix("$ ")) for p in CHECKED for line in code_lines(p))
    return [(name, line) for name, line in lines if line.startswith("brim ")]


def parser_of(verb: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"brim {verb}", exit_on_error=False)
    importlib.import_module(f"brim.cli.{verb}").Command().add_arguments(parser)
    return parser


@pytest.mark.parametrize(("document", "line"), commands())
def test_every_command_of_a_document_is_one_that_brim_takes(document: str, line: str) -> None:
    assert "  " not in line.partition(" #")[0].rstrip(), f"{document}: a remark that is no comment"
    words = shlex.split(line, comments=True)[1:]
    if words == ["--help"]:
        return
    assert words[0] in VERBS, f"{document}: {line}"
    parser = parser_of(words[0])
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    args, unknown = parser.parse_known_args(own)
    assert not unknown, f"{document}: {line}"
    if "--" in words:
        assert hasattr(args, "command"), f"{document}: {words[0]} takes no command after --"
        assert words[-1] != "--"


def test_the_commands_are_found_at_all() -> None:
    assert len(commands()) >= 40


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_every_link_to_a_file_leads_to_one(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (path.parent / target.partition("#")[0]).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_every_file_named_in_backquotes_exists(path: Path) -> None:
    """``tests/zoo/cases.py`` and the like; paths below src/brim may leave that out."""
    roots = (ROOT, ROOT / "src" / "brim", ROOT / "src" / "brim" / "observe" / "inject")
    for name in re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|toml|md))`", path.read_text()):
        if name.split("/")[0] not in ("runs", "photos"):
            assert any((root / name).exists() for root in roots), f"{path.name}: {name}"


def test_the_readme_names_every_verb_and_no_other() -> None:
    named = set(re.findall(r"^\| `brim (\w+)", README.read_text(), re.MULTILINE))
    assert named == set(VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_option_is_documented(verb: str) -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    options = {o for a in parser_of(verb)._actions for o in a.option_strings}
    for option in options - {"-h", "--help"}:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", text), option


def test_every_cause_is_explained_and_no_unknown_one() -> None:
    text = (ROOT / "docs" / "diagnose.md").read_text()
    assert set(re.findall(r"^\| `([a-z]+\.[a-z-]+)` ", text, re.MULTILINE)) == set(CAUSES)


def test_every_document_can_be_reached_from_the_readme() -> None:
    """A newcomer finds every page by links alone."""
    seen: set[Path] = set()
    todo = [README]
    while todo:
        page = todo.pop()
        seen.add(page)
        for target in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text()):
            linked = (page.parent / target).resolve()
            if linked.exists() and linked not in seen:
                todo.append(linked)
    assert set((ROOT / "docs").glob("*.md")) <= seen
