"""Dialects of chat data, and the reason for every record that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.data.chat import Image, NothingToLearn, Turn, Video, parse
from brim.data.quarantine import BadSample

ANSWER = {"role": "assistant", "content": "A cat."}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_qwen_messages_sharegpt_and_llava_say_the_same() -> None:
    expected = (
        Turn("user", (Image("a.jpg"), "\nWhat is it?")),
        Turn("assistant", ("A cat.",)),
    )
    text = "<image>\nWhat is it?"
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": "A cat."}]
    structured = [
        {"type": "image", "image": "a.jpg"},
        {"type": "text", "text": "\nWhat is it?"},
    ]
    for record in (
        {"messages": [user(text), ANSWER], "images": ["a.jpg"]},
        {"messages": [user(text), ANSWER], "images": [{"path": "a.jpg", "bytes": None}]},
        {"messages": [user(structured), ANSWER]},
        {"messages": [user([{"type": "image"}, structured[1]]), ANSWER], "images": ["a.jpg"]},
        {"messages": [user([{"type": "image_url", "image_url": {"url": "a.jpg"}}, structured[1]]),
                      ANSWER]},
        {"conversations": turns, "image": "a.jpg"},
        {"id": 7, "conversations": turns, "images": ["a.jpg"]},
    ):  # fmt: skip
        assert parse(record).turns == expected


def test_embedded_bytes_are_taken_before_a_path() -> None:
    record = {
        "messages": [user("<image>"), ANSWER],
        "images": [{"path": "a.jpg", "bytes": b"\xff\xd8"}],
    }
    assert list(parse(record).pictures()) == [Image(b"\xff\xd8")]


def test_3_images_over_2_turns_keep_their_order() -> None:
    record = {
        "messages": [user("<image>a<image>"), ANSWER, user("b<image>"), ANSWER],
        "images": ["1", "2", "3"],
    }
    turns = parse(record).turns
    assert turns[0].parts == (Image("1"), "a", Image("2"))
    assert turns[2].parts == ("b", Image("3"))


def test_a_video_is_a_file_or_a_list_of_frames_with_its_rate() -> None:
    record = {
        "messages": [user("<video>?<video>"), ANSWER],
        "videos": ["a.mp4", ["1.jpg", "2.jpg"]],
    }
    assert list(parse(record).pictures()) == [
        Video((), "a.mp4"),
        Video(("1.jpg", "2.jpg")),
    ]
    embedded = [{"bytes": b"film", "path": "a.mp4"}, {"bytes": None, "path": "b.mp4"}]
    record = {"messages": [user("<video><video>"), ANSWER], "videos": embedded, "fps": 1}
    assert list(parse(record).pictures()) == [
        Video((), b"film", 1.0),
        Video((), "b.mp4", 1.0),
    ]
    item = {"type": "video", "video": ["1.jpg", "2.jpg"], "fps": 4}
    assert list(parse({"messages": [user([item]), ANSWER]}).pictures()) == [
        Video(("1.jpg", "2.jpg"), None, 4.0)
    ]


def test_a_system_turn_comes_first() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert parse({"messages": [system, user("hi"), ANSWER]}).turns[0].role == "system"
    with pytest.raises(BadSample, match="message 2: a system turn can only come first"):
        parse({"messages": [user("hi"), system, ANSWER]})


def test_a_placeholder_in_an_answer_stays_text() -> None:
    record = {"messages": [user("hi"), {"role": "assistant", "content": "use <image>"}]}
    assert parse(record).turns[1].parts == ("use <image>",)


@pytest.mark.parametrize(
    ("record", "kind", "words"),
    [
        (3, "chat.record", "found a number"),
        (None, "chat.record", "found null"),
        ({"images": []}, "chat.record", "its keys are: images"),
        ({"messages": "hi"}, "chat.record", "a string, not a list"),
        ({"messages": [3]}, "chat.message", "message 1 is a number"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "chat.role", "'narrator'"),
        ({"messages": [{"content": "x"}]}, "chat.role", "role None"),
        ({"messages": [user(None)]}, "chat.content", "null, not a string"),
        ({"messages": [user([3])]}, "chat.content", "holds a number"),
        ({"messages": [user([{"type": "audio"}])]}, "chat.content", "type 'audio'"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "image", "image": "a"}]}]},
            "chat.content",
            "a picture in an answer",
        ),
        (
            {"messages": [user("<image><image>"), ANSWER], "images": ["a"]},
            "chat.placeholders",
            "2 placeholders for 1 images",
        ),
        (
            {"messages": [user("x"), ANSWER], "images": ["a", "b"]},
            "chat.placeholders",
            "0 placeholders for 2 images",
        ),
        ({"messages": [user("<video>"), ANSWER]}, "chat.placeholders", "1 placeholders for 0 vid"),
        ({"messages": [user("<image>"), ANSWER], "images": "a.jpg"}, "chat.pictures", r'\["a\.jpg'),
        ({"messages": [user("<image>"), ANSWER], "images": [3]}, "chat.pictures", "a number"),
        (
            {"messages": [user("<image>"), ANSWER], "images": [{"bytes": "zz"}]},
            "chat.pictures",
            "data: URL",
        ),
        ({"messages": [user("<video>"), ANSWER], "videos": ["a"], "fps": 0}, "chat.pictures", "0"),
        ({"messages": [user("a<|image_pad|>b"), ANSWER]}, "chat.vision-token", "image_pad"),
        ({"messages": [user("\ud83d"), ANSWER]}, "chat.unicode", "character 1"),
    ],
)
def test_what_is_wrong_is_said(record: object, kind: str, words: str) -> None:
    with pytest.raises(BadSample, match=words) as caught:
        parse(record)
    assert caught.value.kind == kind
    assert not isinstance(caught.value, NothingToLearn)


@pytest.mark.parametrize(
    "messages", [[], [user("hi")], [user("hi"), {"role": "assistant", "content": ""}]]
)
def test_nothing_to_learn_is_no_mistake(messages: list[Any]) -> None:
    with pytest.raises(NothingToLearn):
        parse({"messages": messages})


keys = st.sampled_from(
    ["messages", "conversations", "role", "from", "content", "value", "images", "image", "type",
     "text", "videos", "video", "fps", "bytes", "path", "url"]
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(json_values)
def test_any_json_gives_a_conversation_or_a_bad_sample(record: object) -> None:
    try:
        conversation = parse(record)
    except BadSample as bad:
        assert bad.kind.startswith("chat.")
    else:
        assert any(turn.role == "assistant" for turn in conversation.turns)
