"""WebDataset: which members make one sample, in which order, whatever the tar's own order."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.data.chat import Image, Video, parse
from brim.data.quarantine import BadSample
from brim.data.tars import CAPTION_PROMPT, VIDEO_PROMPT, Tar
from brim.errors import InputError


def written(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def chat(user: str, **more: Any) -> bytes:
    turns = [{"role": "user", "content": user}, {"role": "assistant", "content": "Yes."}]
    return json.dumps({"messages": turns, **more}).encode()


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_of_members_decides_nothing(
    order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    members = [
        ("a/000.json", chat("<image><image><video>")),
        ("a/000.1.png", b"second"),
        ("a/000.0.jpg", b"first"),
        ("a/000.clip.mp4", b"film"),
        ("b/000.txt", b"A cat."),
        ("b/000.jpg", b"cat"),
    ]
    path = written(tmp_path_factory.mktemp("tar") / "a.tar", [members[k] for k in order])
    tar = Tar(path)
    found = {tar.where(k).path.rpartition(".tar/")[2]: tar.record(k) for k in range(len(tar))}
    assert found.keys() == {"a/000", "b/000"}
    pictures = list(parse(found["a/000"]).pictures())
    assert pictures == [Image(b"first"), Image(b"second"), Video((), b"film")]
    assert list(parse(found["b/000"]).pictures()) == [Image(b"cat")]


def test_captions_ask_for_a_picture_or_for_a_film(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.tar",
        [("0.txt", b" A cat.\n"), ("0.png", b"x"), ("1.txt", b"A run."), ("1.webm", b"y")],
    )
    turns = [parse(Tar(path).record(k)).turns for k in range(2)]
    assert turns[0][0].parts == (Image(b"x"), CAPTION_PROMPT)
    assert turns[0][1].parts == ("A cat.",)
    assert turns[1][0].parts == (Video((), b"y"), VIDEO_PROMPT)


def test_a_conversation_says_more_than_a_caption(tmp_path: Path) -> None:
    members = [("0.txt", b"A cat."), ("0.json", chat("hi?")), ("0.cls", b"3")]
    for order in (members, members[::-1]):
        path = written(tmp_path / "a.tar", order)
        [turn, _] = parse(Tar(path).record(0)).turns
        assert turn.parts == ("hi?",)


def test_names_inside_the_record_give_way_to_the_members(tmp_path: Path) -> None:
    record = chat("<image><video>", images=["elsewhere.jpg"], video="elsewhere.mp4")
    path = written(tmp_path / "a.tar", [("0.json", record), ("0.jpg", b"x"), ("0.mp4", b"y")])
    assert list(parse(Tar(path).record(0)).pictures()) == [Image(b"x"), Video((), b"y")]
    alone = written(tmp_path / "b.tar", [("0.json", record)])
    assert list(parse(Tar(alone).record(0)).pictures()) == [
        Image("elsewhere.jpg"),
        Video((), "elsewhere.mp4"),
    ]


def test_members_without_a_text_are_no_sample(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tar", [("0.jpg", b"x"), ("1.txt", b"A cat."), ("1.jpg", b"y")])
    assert len(Tar(path)) == 1
    with pytest.raises(InputError, match="holds no sample"):
        Tar(written(tmp_path / "b.tar", [("0.jpg", b"x"), ("1.mp4", b"y")]))


def test_a_caption_that_is_no_text_is_a_bad_sample(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tar", [("0.txt", b"\xff\xfe"), ("0.jpg", b"x")])
    with pytest.raises(BadSample, match="no UTF-8"):
        Tar(path).record(0)


def test_the_fingerprint_follows_names_sizes_and_order(tmp_path: Path) -> None:
    members = [("0.txt", b"abc"), ("0.jpg", b"xyz")]
    prints = {
        Tar(written(tmp_path / f"{n}.tar", change)).fingerprint()
        for n, change in enumerate(
            [
                members,
                members[::-1],
                [("1.txt", b"abc"), members[1]],
                [("0.txt", b"abcd"), members[1]],
            ]
        )
    }
    assert len(prints) == 4
    again = Tar(written(tmp_path / "again.tar", members)).fingerprint()
    assert again in prints
