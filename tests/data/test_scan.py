"""The scan: right numbers, kept beside the data, taken again only while nothing has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.pictures import jpeg
from tests.data.sets import write_set

from brim.data import scan as scan_module
from brim.data import scanning
from brim.data.columns import Columns, Scan
from brim.data.decode import DecodePolicy
from brim.data.quarantine import Quarantine, TooManyBadSamples, read_quarantine
from brim.data.scan import scan
from brim.data.sources import SourceConfig, open_sources
from brim.data.tokens import ChatTokens
from brim.errors import BrimError


def scanned(
    path: Path, tokens: ChatTokens, quarantine: Quarantine | None = None, processes: int = 1
) -> Scan:
    sources = open_sources([SourceConfig(path=str(path))])
    [result] = scan(
        sources,
        tokens,
        DecodePolicy(),
        cache=[path.parent / ".brim"],
        quarantine=quarantine or Quarantine(),
        processes=processes,
    )
    return result


def test_columns_hold_what_the_samples_are(tmp_path: Path, chat_tokens: ChatTokens) -> None:
    path = write_set(tmp_path, 12, images=2)
    result = scanned(path, chat_tokens)
    [source] = open_sources([SourceConfig(path=str(path))])
    names = list(result.columns.names())
    for n in range(12):
        encoded = chat_tokens.encode(source.conversation(n))
        assert result.columns.text[n] == len(encoded.ids)
        assert result.columns.scored[n] == encoded.scored.sum()
        tail = encoded.scored[encoded.blocks[-1][0] :]
        assert result.columns.tail[n] == len(tail)
        assert result.columns.tail_scored[n] == tail.argmax()
        assert names[2 * n : 2 * n + 2] == [f"{n % 5}.jpg", f"{(n + 1) % 5}.jpg"]
    sizes = [(64 + 48 * (n % 5), 320 - 32 * (n % 5)) for n in range(3)]
    found = list(zip(result.columns.height.tolist(), result.columns.width.tolist(), strict=True))
    assert found[:6] == [sizes[0], sizes[1], sizes[1], sizes[2], sizes[2], (208, 224)]


def test_two_processes_find_what_one_finds(
    tmp_path: Path, chat_tokens: ChatTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "_CHUNK", 10)
    one = scanned(write_set(tmp_path / "a", 75), chat_tokens)
    two = scanned(write_set(tmp_path / "b", 75), chat_tokens, processes=2)
    for name in ("record", "text", "scored", "tail", "height", "width", "ref_end", "refs"):
        np.testing.assert_array_equal(getattr(one.columns, name), getattr(two.columns, name))


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_not_run_again_by_the_helpers(
    tmp_path: Path, qwen_folder: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('here', flush=True)\n"
        "import sys; from pathlib import Path\n"
        "from brim.data import scan\n"
        "from brim.data.decode import EXACT\n"
        "from brim.data.quarantine import Quarantine\n"
        "from brim.data.sources import SourceConfig, open_sources\n"
        "from brim.data.tokens import ChatTokens\n"
        "scan._CHUNK = 10\n"
        "sources = open_sources([SourceConfig(path=sys.argv[1])])\n"
        "[found] = scan.scan(sources, ChatTokens(Path(sys.argv[2])), EXACT,\n"
        "    cache=[Path(sys.argv[3])], quarantine=Quarantine(), processes=2)\n"
        "print(len(found.columns.record))\n"
    )
    words = [write_set(tmp_path, 75), qwen_folder, tmp_path]
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["here", "75"]


def test_a_scanning_process_that_dies_is_an_error_and_no_hang(
    tmp_path: Path, chat_tokens: ChatTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "_CHUNK", 10)
    started = scanning.start

    def short_lived(*names: str) -> Any:
        process, connection = started(*names)
        process.kill()
        process.wait()
        return process, connection

    monkeypatch.setattr(scanning, "start", short_lived)
    with pytest.raises(BrimError, match="process that reads headers and texts died"):
        scanned(write_set(tmp_path, 75), chat_tokens, processes=2)


def test_a_second_scan_is_taken_from_beside_the_data(
    tmp_path: Path, chat_tokens: ChatTokens
) -> None:
    path = write_set(tmp_path, 6)
    first, second = scanned(path, chat_tokens), scanned(path, chat_tokens)
    assert (first.cached, second.cached) == (False, True)
    np.testing.assert_array_equal(first.columns.text, second.columns.text)
    os.utime(path)  # a new time on the same content changes nothing
    assert scanned(path, chat_tokens).cached


def test_a_changed_line_is_scanned_anew(tmp_path: Path, chat_tokens: ChatTokens) -> None:
    path = write_set(tmp_path, 6)
    scanned(path, chat_tokens)
    path.write_text(path.read_text().replace("picture 3", "picture 3, 4, 5"))
    result = scanned(path, chat_tokens)
    assert not result.cached


def test_only_the_samples_of_a_changed_picture_are_scanned_anew(
    tmp_path: Path, chat_tokens: ChatTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_set(tmp_path, 12)
    scanned(path, chat_tokens)
    (tmp_path / "3.jpg").write_bytes(jpeg(99, 77))
    asked: list[str] = []
    from brim.data.store import Store

    original = Store.header
    monkeypatch.setattr(
        Store, "header", lambda self, ref: (asked.append(str(ref)), original(self, ref))[1]
    )
    result = scanned(path, chat_tokens)
    assert asked == ["3.jpg", "3.jpg"]
    assert result.columns.record.tolist() == list(range(12))
    assert result.columns.height[[3, 8]].tolist() == [99, 99]
    assert result.columns.height[2] == 160
    assert list(result.columns.names())[3] == "3.jpg"
    assert scanned(path, chat_tokens).cached


def test_a_vanished_picture_makes_bad_samples_and_a_mended_one_good_ones(
    tmp_path: Path, chat_tokens: ChatTokens
) -> None:
    path = write_set(tmp_path, 10)
    scanned(path, chat_tokens)
    (tmp_path / "4.jpg").unlink()
    broken = scanned(path, chat_tokens)
    assert broken.columns.record.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [(b.record, b.kind, b.image) for b in broken.bad] == [
        (4, "image.missing", "4.jpg"),
        (9, "image.missing", "4.jpg"),
    ]
    (tmp_path / "4.jpg").write_bytes(jpeg(50, 50))
    (tmp_path / "3.jpg").touch()
    assert scanned(path, chat_tokens).columns.record.tolist() == list(range(10))


def test_a_cut_cache_file_is_no_cache(tmp_path: Path, chat_tokens: ChatTokens) -> None:
    path = write_set(tmp_path, 6)
    first = scanned(path, chat_tokens)
    [cache] = (tmp_path / ".brim").glob("scan-*.npz")
    for keep in (0, 10, cache.stat().st_size // 2):
        cache.write_bytes(cache.read_bytes()[:keep])
        again = scanned(path, chat_tokens)
        assert not again.cached
        np.testing.assert_array_equal(first.columns.text, again.columns.text)


def test_bad_records_are_listed_skipped_ones_counted_and_oddities_noted(
    tmp_path: Path, chat_tokens: ChatTokens
) -> None:
    path = write_set(tmp_path, 3)
    good = json.loads(path.read_text().splitlines()[0])
    extra = [
        "{broken",
        json.dumps({**good, "images": ["none.jpg"]}),
        json.dumps({"messages": []}),
        json.dumps(good)[:-1] + ', "images": ["0.jpg"]}',
        json.dumps({**good, "images": ["tall.jpg"]}),
        json.dumps(good).replace("<image>", "<video>").replace('"images"', '"videos"'),
    ]
    (tmp_path / "tall.jpg").write_bytes(jpeg(1000, 4))
    path.write_text(path.read_text() + "\n".join(extra) + "\n")
    for _ in range(2):  # from the files, then from the cache
        quarantine = Quarantine(path=tmp_path / "bad.jsonl")
        result = scanned(path, chat_tokens, quarantine)
        assert result.columns.record.tolist() == [0, 1, 2, 6]
        assert result.skipped == {"chat.empty": 1}
        assert result.notes == {"the key 'images' comes twice": 1}
        listed = list(read_quarantine(tmp_path / "bad.jsonl"))
        assert sorted((e.line, e.kind) for e in listed) == [
            (4, "json.syntax"),
            (5, "image.missing"),
            (8, "image.aspect"),
            (9, "video.container"),
        ]
        (tmp_path / "bad.jsonl").unlink()


def test_a_set_of_mostly_bad_samples_stops_the_run(tmp_path: Path, chat_tokens: ChatTokens) -> None:
    path = write_set(tmp_path, 20)
    for n in range(4):
        (tmp_path / f"{n}.jpg").unlink()
    with pytest.raises(TooManyBadSamples, match="16 of 20 samples are bad"):
        scanned(path, chat_tokens)


def test_a_video_of_frames_counts_its_frames(tmp_path: Path, chat_tokens: ChatTokens) -> None:
    path = write_set(tmp_path, 1)
    record = json.loads(path.read_text())
    record["messages"][0]["content"] = "<video>"
    record["videos"] = [["0.jpg", "0.jpg", "0.jpg"]]
    del record["images"]
    path.write_text(json.dumps(record) + "\n")
    columns = scanned(path, chat_tokens).columns
    assert columns.frames.tolist() == [3]
    assert (columns.height[0], columns.width[0]) == (64, 320)


def test_progress_reaches_the_end(tmp_path: Path, chat_tokens: ChatTokens) -> None:
    sources = open_sources(
        [SourceConfig(path=str(write_set(tmp_path / name, 5))) for name in ("a", "b")]
    )
    seen: list[tuple[int, int]] = []
    scan(
        sources,
        chat_tokens,
        DecodePolicy(),
        cache=[tmp_path] * 2,
        quarantine=Quarantine(),
        processes=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (10, 10)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_ranks_of_a_host_scan_once(
    tmp_path: Path, chat_tokens: ChatTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_set(tmp_path, 20)
    work = scan_module._Work.scan
    calls = []

    def slow(self: Any, records: Any) -> Scan:
        calls.append(len(records))
        time.sleep(0.2)  # long enough for the others to come
        return work(self, records)

    monkeypatch.setattr(scan_module._Work, "scan", slow)
    with ThreadPoolExecutor(4) as ranks:
        results = list(ranks.map(lambda _: scanned(path, chat_tokens), range(4)))
    assert calls == [20]
    assert sorted(result.cached for result in results) == [False, True, True, True]


def test_columns_of_nothing_join_with_columns_of_something() -> None:
    empty = Columns.of([])
    assert len(Columns.joined([empty, empty]).record) == 0
