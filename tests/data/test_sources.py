"""Files of every kind yield the same conversations; what is no data set is named."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.pictures import jpeg

from brim.data.chat import Conversation, NothingToLearn, parse
from brim.data.lines import Lines, duplicates, loads
from brim.data.quarantine import BadSample
from brim.data.sources import Source, SourceConfig, cache_folder, open_sources
from brim.errors import BrimError, ConfigError, InputError


def sample(n: int, image: object = "a.jpg") -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"<image>What is {n}?"},
            {"role": "assistant", "content": f"It is {n}."},
        ],
        "images": [image],
    }


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def opened(path: Path | str, cache: Path | None = None) -> Source:
    [source] = open_sources([SourceConfig(path=str(path))], cache)
    return source


def texts(source: Source) -> list[str]:
    return [str(source.conversation(i).turns[1].parts[0]) for i in range(len(source))]


def test_jsonl_json_parquet_and_a_saved_dataset_hold_the_same_3_samples(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    records = [sample(n, {"bytes": jpeg(8, 8), "path": None}) for n in range(3)]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet", row_group_size=1)
    rows = datasets.Dataset.from_list(records)
    rows.cast_column("images", datasets.List(datasets.Image())).save_to_disk(tmp_path / "saved")
    plain = [sample(n) for n in range(3)]
    write_lines(tmp_path / "a.jsonl", plain)
    (tmp_path / "a.json").write_text(json.dumps(plain, indent=2))
    for name in ("a.jsonl", "a.json", "a.parquet", "saved"):
        source = opened(tmp_path / name)
        assert texts(source) == ["It is 0.", "It is 1.", "It is 2."], name
        again = pickle.loads(pickle.dumps(source))
        assert texts(again) == texts(source)
        assert again.records.fingerprint() == source.records.fingerprint()
    assert next(opened(tmp_path / "saved").conversation(1).pictures()).ref == jpeg(8, 8)
    assert next(opened(tmp_path / "a.parquet").conversation(1).pictures()).ref == jpeg(8, 8)


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_a_webdataset_tar_gives_conversations_and_captions(tmp_path: Path) -> None:
    llava = {
        "conversations": [
            {"from": "human", "value": "<image>\n<image>?"},
            {"from": "gpt", "value": "Two."},
        ],
        "image": ["ignored.jpg", "ignored.jpg"],
    }
    path = tar_of(
        tmp_path / "a.tar",
        {
            "d/000.1.jpg": jpeg(8, 8, 1),
            "d/000.0.jpg": jpeg(8, 8, 0),
            "d/000.json": json.dumps(llava).encode(),
            "001.png": b"png",
            "001.txt": b" A caption.\n",
            "002.jpg": b"no text, no sample",
            "003.json": b"{broken",
        },
    )
    source = opened(path)
    assert len(source) == 3
    first = source.conversation(0)
    assert [p.ref for p in first.pictures()] == [jpeg(8, 8, 0), jpeg(8, 8, 1)]
    assert source.conversation(1).turns[1].parts == ("A caption.",)
    with pytest.raises(BadSample, match="Expecting property name"):
        source.conversation(2)
    assert str(source.records.where(0)).endswith("a.tar/d/000")


def test_a_folder_is_all_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_lines(tmp_path / f"{name}.jsonl", [sample(ord(name))])
    (tmp_path / "readme.md").write_text("not data")
    sources = open_sources([SourceConfig(path=str(tmp_path))])
    assert [texts(s)[0] for s in sources] == ["It is 97.", "It is 98.", "It is 99."]


def test_a_url_is_copied_to_the_cache_and_read_there(tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/far/a.jsonl", json.dumps(sample(5)).encode() + b"\n")
    assert texts(opened("memory://far/a.jsonl", tmp_path)) == ["It is 5."]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", "an empty file"),
        ("a.jsonl", b"\n  \n\t\n", "holds no sample"),
        ("a.jsonl", "{}\n".encode("utf-16"), "UTF-16, not UTF-8"),
        ("a.jsonl", "{}\n".encode("utf-16-le"), "UTF-16, not UTF-8"),
        ("a.jsonl", b'[{"a": 1},\n {"a": 2}]', "a JSON array, not JSONL"),
        ("a.jsonl", b'{\n "messages": []\n}\n', "pretty-printed JSON"),
        ("a.json", b'[{"a": 1}, {"a": ]', "does not parse"),
        ("a.json", b"[]", "holds no sample"),
        ("a.parquet", b"PAR1", "no parquet file"),
        ("a.tar", b"x" * 600, "no readable tar"),
        ("a.tar", bytes(10_240), "holds no sample"),
        ("a.csv", b"a,b", "ends in none of .jsonl"),
    ],
)
def test_what_is_no_data_set_is_an_error_that_names_the_file(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        opened(tmp_path / name)
    assert name in str(caught.value)


def test_a_missing_file_an_empty_folder_and_an_empty_list_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        opened(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="in this folder"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.sources is empty"):
        open_sources([])
    with pytest.raises(ConfigError, match="weight"):
        SourceConfig(path="a", weight=0)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_marks_and_blank_lines(tmp_path: Path, end: str, bom: bytes, last: bool) -> None:
    lines = [json.dumps(sample(1)), "  ", json.dumps(sample(2))]
    text = end.join(lines) + (end if last else "")
    (tmp_path / "a.jsonl").write_bytes(bom + text.encode())
    source = opened(tmp_path / "a.jsonl")
    assert texts(source) == ["It is 1.", "It is 2."]
    assert [source.records.where(i).line for i in range(2)] == [1, 3]


def test_a_place_is_a_line_and_a_byte_offset(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [sample(1), sample(22), sample(3)])
    where = Lines(path).where(2)
    assert path.read_bytes()[where.offset :] == json.dumps(sample(3)).encode() + b"\n"


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers()), min_size=1, max_size=8))
def test_json_arrays_are_found_element_by_element(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "array.json"
    for indent in (None, 1):
        path.write_text(json.dumps(records, indent=indent))
        lines = Lines(path)
        assert [lines.record(i) for i in range(len(lines))] == records


def test_the_fingerprint_follows_the_content_not_the_clock(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [sample(1)])
    first = Lines(path).fingerprint()
    path.touch()
    assert Lines(path).fingerprint() == first
    write_lines(path, [sample(2)])
    assert Lines(path).fingerprint() != first


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 1} {"b": 2}', "a second value on the line, at column 10"),
        (b"# hi", "a comment"),
        (b'{"a": 1,}', "at column"),
        (b"{'a': 1}", "at column 2"),
        (b'{"a": "\0\0"}', "a hole that a crash left"),
        (b'{"a": "\xff"}', "no UTF-8 at byte 8 of the line"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, "Exceeds the limit"),
    ],
)
def test_a_line_that_is_no_json_says_what_it_is(line: bytes, words: str) -> None:
    with pytest.raises(BadSample, match=words):
        loads(line)


def test_a_last_line_without_its_end_tells_of_a_dead_writer(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [sample(1), sample(2)])
    path.write_bytes(path.read_bytes()[:-30])
    lines = Lines(path)
    lines.record(0)
    with pytest.raises(BadSample, match="did its writer die"):
        lines.record(1)


def test_a_key_that_comes_twice_keeps_its_last_value_and_is_named() -> None:
    line = b'{"a": {"b": 1, "b": 2}, "c": 3, "c": 4}'
    assert loads(line) == {"a": {"b": 2}, "c": 4}
    assert duplicates(line) == ("b", "c")
    assert duplicates(b'{"a": 1}') == ()


def test_a_folder_that_cannot_be_written_is_cached_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder(tmp_path) == tmp_path / ".brim"
    assert cache_folder(Path("/proc")) == tmp_path / "cache" / "brim" / "proc"


# file → what its samples become; "ok" where only the (absent) picture is missing
WANTED: dict[str, list[str] | str] = {
    "empty": "holds no sample", "only_blank_lines": "holds no sample", "utf16": "UTF-16",
    "json_array_not_lines": "a JSON array, not JSONL", "pretty_printed": "pretty-printed JSON",
    "bom": ["image.missing"], "crlf": ["image.missing"] * 2, "cr_only": ["image.missing"] * 2,
    "no_final_newline": ["image.missing"] * 2, "cut_last_line": ["image.missing", "json.syntax"],
    "blank_in_middle": ["image.missing"] * 2, "comment_line": ["json.syntax", "image.missing"],
    "trailing_comma": ["json.syntax"], "single_quotes": ["json.syntax"],
    "nan_value": ["skip"], "two_objects_one_line": ["json.syntax"],
    "nul_bytes": ["image.missing", "json.syntax"], "invalid_utf8": ["json.utf8"],
    "lone_surrogate": ["chat.unicode"], "deep_nesting": ["json.nesting"],
    "huge_int": ["json.number"], "long_line": ["skip"], "duplicate_keys": ["skip"],
    "scalar_line": ["chat.record"] * 3, "missing_messages": ["chat.record"],
    "messages_not_list": ["chat.record"], "empty_messages": ["skip"], "only_user_turn": ["skip"],
    "empty_answer": ["skip"], "unknown_role": ["chat.role"], "content_null": ["chat.content"],
    "more_placeholders_than_images": ["chat.placeholders"],
    "more_images_than_placeholders": ["chat.placeholders"], "placeholder_in_answer": ["ok"],
    "special_token_injection": ["ok"], "vision_token_injection": ["chat.vision-token"],
    "image_missing_image": ["image.missing"], "image_absolute_path": ["image.path"],
    "image_parent_escape": ["image.path"], "image_file_url": ["image.url"],
    "image_metadata_url": ["image.url"], "image_loopback_url": ["image.url"],
    "image_redirecting_url": ["image.url"], "image_ftp_url": ["image.url"],
    "image_nul_in_path": ["image.path"], "image_directory": ["image.path"],
    "image_fifo_like": ["image.path"], "image_proc_path": ["image.path"],
    "image_long_name": ["image.path"], "image_unicode_nfd": ["image.missing"],
    "image_data_url_bad_base64": ["image.data-url"], "image_data_url_huge": ["image.unreadable"],
    "image_windows_path": ["image.missing"], "image_glob": ["image.missing"],
    "image_empty_string": ["image.path"], "images_dict": ["chat.pictures"],
    "images_string": ["chat.pictures"], "mixed_schema": ["image.missing"] * 2,
}  # fmt: skip


def outcome(source: Source, index: int) -> str:
    try:
        conversation: Conversation = parse(source.records.record(index))
        for part in conversation.pictures():
            source.store.header(part.ref)  # type: ignore[union-attr]
    except NothingToLearn:
        return "skip"
    except BadSample as bad:
        return bad.kind
    return "ok"


def test_58_defects_in_chat_files_give_what_their_list_wants(shared: Path) -> None:
    folder = shared / "bad-inputs" / "jsonl"
    assert json.loads((folder / "cases.json").read_text()).keys() == WANTED.keys()
    for name, wanted in WANTED.items():
        try:
            source = opened(folder / f"{name}.jsonl")
        except BrimError as error:
            assert isinstance(wanted, str) and wanted in str(error), f"{name}: {error}"
        else:
            assert [outcome(source, i) for i in range(len(source))] == wanted, name


def test_a_parquet_file_of_many_batches_gives_any_row(tmp_path: Path) -> None:
    records = [sample(n) for n in range(1000)]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet", row_group_size=300)
    source = opened(tmp_path / "a.parquet")
    for index in (0, 255, 256, 299, 300, 511, 512, 998, 999):
        assert source.records.record(index) == records[index]
        assert source.records.where(index).line == index + 1
    [copy] = (tmp_path / ".brim").glob("*.arrow")
    made = copy.stat().st_mtime_ns
    opened(tmp_path / "a.parquet")
    assert copy.stat().st_mtime_ns == made  # written once
    pq.write_table(pa.Table.from_pylist(records[:500]), tmp_path / "a.parquet")
    again = opened(tmp_path / "a.parquet")
    assert len(again) == 500
    assert again.records.fingerprint() != source.records.fingerprint()


def test_a_full_disk_leaves_no_half_copy_of_a_parquet_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.Table.from_pylist([sample(1)]), tmp_path / "a.parquet")

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", full)
    with pytest.raises(OSError, match="No space"):
        opened(tmp_path / "a.parquet")
    assert not list((tmp_path / ".brim").iterdir())


def test_a_dataset_without_the_split_names_those_it_has(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([sample(1)])
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "saved")
    config = SourceConfig(path=str(tmp_path / "saved"), split="val")
    with pytest.raises(InputError, match="has no split val; it has train, test"):
        open_sources([config])
    [source] = open_sources([SourceConfig(path=str(tmp_path / "saved"), split="test")])
    assert len(source) == 1


def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded as a dataset"):
        opened(tmp_path / "saved")


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.9])
def test_a_cut_tar_gives_whole_samples_or_reasons(tmp_path: Path, keep: float) -> None:
    members = {}
    for n in range(5):
        members[f"{n}.json"] = json.dumps(sample(n)).encode()
        members[f"{n}.jpg"] = jpeg(32, 32, n)
    path = tar_of(tmp_path / "a.tar", members)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data.rstrip(b"\0")) * keep)])
    try:
        source = opened(path)
    except InputError as error:
        assert "a.tar" in str(error)
        return
    for index in range(len(source)):
        try:
            conversation = source.conversation(index)
        except BadSample as bad:
            assert bad.kind in ("tar.member", "json.syntax", "chat.placeholders")
        else:
            ref = next(conversation.pictures()).ref
            # a picture that was cut off is a path again, which the scan does not find
            assert ref == jpeg(32, 32, index) or (ref == "a.jpg" and index == len(source) - 1)


def test_a_member_above_the_limit_is_not_read(tmp_path: Path) -> None:
    from brim.data.tars import Tar

    path = tar_of(
        tmp_path / "a.tar", {"0.json": json.dumps(sample(0)).encode(), "0.jpg": bytes(999)}
    )
    with pytest.raises(BadSample, match="a member of 999 bytes; the limit is 500"):
        Tar(path, max_bytes=500).record(0)
