"""One record of a data set to one conversation; every known dialect, and a reason for the rest.

======================================  ====================================================
``messages`` (OpenAI, Qwen, ms-swift)   ``{"role", "content"}``; content a string with
                                        ``<image>`` / ``<video>`` placeholders, or a list of
                                        ``{"type": "text" | "image" | "video", …}``
``conversations`` (ShareGPT, LLaVA)     ``{"from": "human" | "gpt" | "system", "value"}``
pictures                                ``images`` or ``image``, ``videos`` or ``video``: for the
                                        placeholders, in their order
======================================  ====================================================

Placeholders are counted here, before any tokenizing: only in the user's and the system's turns,
for in an answer ``<image>`` is text to be learnt.  What has nothing to learn (no message, no
answer) is skipped; what is wrong is a bad sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from brim.data.quarantine import BadSample

Ref = str | bytes
"""A picture: a path or URL to resolve, or the bytes of the file."""


class NothingToLearn(BadSample):
    """A sample without an answer: left out and counted, but no mistake."""


@dataclass(frozen=True, slots=True)
class Image:
    ref: Ref


@dataclass(frozen=True, slots=True)
class Clip:
    """Which frames of a video file are taken; all from its header."""

    frames: tuple[int, ...]
    """Their numbers in the file, ascending."""
    fps: float
    """Of the file: frame n is at n / fps seconds."""
    height: int
    """Upright."""
    width: int


@dataclass(frozen=True, slots=True)
class Video:
    """A video: its file, or its frames, which are taken as sampled already."""

    frames: tuple[Ref, ...]
    file: Ref | None = None
    fps: float | None = None
    """Frames a second of ``frames``; of a file, as many as are wanted.  None: Qwen3-VL's 2."""
    clip: Clip | None = None
    """Of a file, once its header is read: :func:`brim.data.video.chosen`."""


Part = str | Image | Video


def name_of(part: Image | Video) -> str:
    """What a picture is called (a video: its first frame); embedded bytes have no name."""
    ref = part.ref if isinstance(part, Image) else next(iter(part.frames), part.file)
    return ref if isinstance(ref, str) and not ref.startswith("data:") else ""


@dataclass(frozen=True, slots=True)
class Turn:
    role: str
    """system, user or assistant."""
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    turns: tuple[Turn, ...]

    def pictures(self) -> Iterator[Image | Video]:
        """In the order in which the model sees them."""
        for turn in self.turns:
            yield from (part for part in turn.parts if not isinstance(part, str))


_ROLES = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "human": "user",
    "gpt": "assistant",
}
_PLACEHOLDER = re.compile(r"<(image|video)>")
# in a text they would be counted as places for visual features and shift all that follow
_VISION_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def parse(record: object) -> Conversation:
    """The conversation of one record.  Raises BadSample (or its NothingToLearn) with a reason."""
    if not isinstance(record, Mapping):
        raise BadSample("chat.record", f"an object was expected, found {_kind(record)}")
    messages = _messages(record)
    shelf = _Shelf.of(record)
    turns = tuple(_turn(n, message, shelf) for n, message in enumerate(messages))
    shelf.check_empty()
    if not any(turn.role == "assistant" and _text(turn) for turn in turns):
        raise NothingToLearn("chat.no-answer", "no answer to learn")
    return Conversation(turns)


def _messages(record: Mapping[str, Any]) -> list[Any]:
    found = [key for key in ("messages", "conversations") if record.get(key) is not None]
    if not found:
        keys = ", ".join(sorted(map(str, record))[:8]) or "none"
        raise BadSample("chat.record", f"no 'messages' or 'conversations'; its keys are: {keys}")
    messages = record[found[0]]
    if not isinstance(messages, list):
        raise BadSample("chat.record", f"'{found[0]}' is {_kind(messages)}, not a list")
    if not messages:
        raise NothingToLearn("chat.empty", f"'{found[0]}' is empty")
    return messages


@dataclass
class _Shelf:
    """The pictures of a record, taken by its placeholders in order."""

    images: list[Image]
    videos: list[Video]
    asked: dict[str, int] = field(default_factory=lambda: {"image": 0, "video": 0})

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _Shelf:
        images = [_image(item) for item in _listed(record, "images", "image")]
        fps = record.get("fps")
        videos = [_video(item, fps) for item in _listed(record, "videos", "video")]
        return cls(images, videos)

    def take(self, kind: str) -> Image | Video:
        stock: list[Any] = self.images if kind == "image" else self.videos
        at = self.asked[kind]
        self.asked[kind] += 1
        # an absent one is reported with the final counts; nothing is made of the stand-in
        return stock[at] if at < len(stock) else Image("")

    def check_empty(self) -> None:
        for kind, stock in (("image", self.images), ("video", self.videos)):
            if self.asked[kind] != len(stock):
                raise BadSample(
                    "chat.placeholders",
                    f"{self.asked[kind]} placeholders for {len(stock)} {kind}s",
                )


def _listed(record: Mapping[str, Any], plural: str, singular: str) -> list[Any]:
    """The list under ``plural``, or the one or many things under ``singular``."""
    value = record.get(plural)
    if value is None:
        value = record.get(singular)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]
    if isinstance(value, str):
        raise BadSample("chat.pictures", f"'{plural}' is a string; write [\"{value[:40]}\"]")
    if not isinstance(value, list):
        raise BadSample("chat.pictures", f"'{plural}' is {_kind(value)}, not a list")
    return value


def _turn(number: int, message: object, shelf: _Shelf) -> Turn:
    if not isinstance(message, Mapping):
        raise BadSample("chat.message", f"message {number + 1} is {_kind(message)}, not an object")
    said = message.get("role", message.get("from"))
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        known = ", ".join(_ROLES)
        raise BadSample("chat.role", f"message {number + 1} has role {said!r}; known are {known}")
    if role == "system" and number:
        raise BadSample("chat.role", f"message {number + 1}: a system turn can only come first")
    content = message.get("content", message.get("value"))
    if isinstance(content, str):
        return Turn(role, tuple(_split(content, role, shelf)))
    if isinstance(content, list):
        return Turn(role, tuple(_merged(_item(number, item, role, shelf) for item in content)))
    raise BadSample(
        "chat.content", f"the content of message {number + 1} is {_kind(content)}, not a string"
    )


def _split(text: str, role: str, shelf: _Shelf) -> Iterator[Part]:
    """Text with its placeholders exchanged for pictures; the answer's text stays as it is."""
    _check_text(text)
    if role == "assistant":
        if text:
            yield text
        return
    at = 0
    for match in _PLACEHOLDER.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        yield shelf.take(match.group(1))
        at = match.end()
    if at < len(text):
        yield text[at:]


def _item(number: int, item: object, role: str, shelf: _Shelf) -> Part:
    """One element of a structured content list, as transformers and Qwen write it."""
    if not isinstance(item, Mapping):
        raise BadSample("chat.content", f"message {number + 1} holds {_kind(item)}, not an object")
    kind = item.get("type") or next((k for k in ("text", "image", "video") if k in item), None)
    if kind == "text" and isinstance(item.get("text"), str):
        _check_text(item["text"])
        return str(item["text"])
    if kind in ("image", "image_url", "video") and role == "assistant":
        raise BadSample("chat.content", f"message {number + 1}: a picture in an answer")
    if kind in ("image", "image_url"):
        found = next((item[k] for k in ("image", "image_url", "path", "url") if item.get(k)), None)
        if isinstance(found, Mapping) and "url" in found:
            found = found["url"]
        return shelf.take("image") if found is None else _image(found)
    if kind == "video":
        found = next((item[k] for k in ("video", "path", "url") if item.get(k)), None)
        if found is None:
            return shelf.take("video")
        return _video(found, item.get("fps", item.get("sample_fps")))
    raise BadSample("chat.content", f"message {number + 1} holds a part of type {kind!r}")


def _merged(parts: Iterator[Part]) -> Iterator[Part]:
    """Neighbouring texts joined: the template writes them without anything between."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def _image(item: object) -> Image:
    """A path, a URL, or ``{"path"}`` / ``{"bytes"}`` as Hugging Face datasets store it."""
    if isinstance(item, str | bytes):
        return Image(item)
    if isinstance(item, Mapping):
        data = item.get("bytes")
        if isinstance(data, bytes):
            return Image(data)
        if data is not None:
            raise BadSample("chat.pictures", "'bytes' of an image is text; use a data: URL")
        if isinstance(item.get("path"), str):
            return Image(item["path"])
    raise BadSample("chat.pictures", f"an image is {_kind(item)}, not a path")


def _video(item: object, fps: object) -> Video:
    """A file (a path, or its bytes as Hugging Face datasets store them), or a list of frames."""
    if fps is not None and not (isinstance(fps, int | float) and 0 < fps < 1e4):
        raise BadSample("chat.pictures", f"fps is {fps!r}")
    rate = None if fps is None else float(fps)
    if isinstance(item, Mapping):
        item = item.get("bytes") or item.get("path")
    if isinstance(item, str | bytes) and item:
        return Video((), item, rate)
    if isinstance(item, list):
        return Video(tuple(_image(frame).ref for frame in item), None, rate)
    raise BadSample("chat.pictures", f"a video is {_kind(item)}, not a path or a list of frames")


def _check_text(text: str) -> None:
    for mark in _VISION_MARKS:
        if mark in text:
            raise BadSample("chat.vision-token", f"the text holds {mark}, a place for an image")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadSample(
                "chat.unicode", f"half of a surrogate pair at character {error.start + 1}"
            ) from None


def _text(turn: Turn) -> str:
    return "".join(part for part in turn.parts if isinstance(part, str))


def _kind(value: object) -> str:
    names = {
        "NoneType": "null",
        "dict": "an object",
        "list": "a list",
        "str": "a string",
        "int": "a number",
        "float": "a number",
        "bool": "true or false",
        "bytes": "bytes",
    }
    return names.get(type(value).__name__, type(value).__name__)
