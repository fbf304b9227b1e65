"""A conversation as token ids with its loss mask, exactly as the model's chat template writes it.

::

    <|im_start|>user\\n<|vision_start|>…<|vision_end|>text<|im_end|>\\n
    <|im_start|>assistant\\nanswer<|im_end|>\\n

Control tokens are placed by id; all text between two of them is tokenized in one piece, as the
reference tokenizes it.  A text that spells a control token (``<|im_end|>``) stays text: a user
cannot end his own turn.  Visual tokens are not rendered: only the place and the length of each
block are known here.

Scored are the tokens of every answer and the ``<|im_end|>`` that ends it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from tokenizers import Tokenizer

from brim.data.chat import Conversation, Image, Turn, Video
from brim.data.pieces import Pieces
from brim.data.quarantine import BadSample
from brim.errors import InputError, in_a_line

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template*", "*.jinja", "vocab.json")


@dataclass(frozen=True, slots=True)
class Encoded:
    """The text of a sample; visual tokens are places in it."""

    ids: NDArray[np.int32]
    """Text and control tokens, without any visual token."""
    scored: NDArray[np.bool_]
    """Which of ``ids`` are learnt."""
    blocks: tuple[tuple[int, int], ...]
    """(index into ``ids`` before which a block of visual tokens stands, number of its picture); an
    image is one block, a video one per temporal patch."""


def timestamps(
    frames: Sequence[int] | NDArray[np.int64], fps: float, temporal: int = 2
) -> list[float]:
    """Seconds of each temporal patch: the mean of its first and last frame's.

    ``frames`` are frame numbers in a video of ``fps`` frames a second; an incomplete last patch
    repeats the last frame (``Qwen3VLProcessor._calculate_timestamps``).
    """
    numbers = [int(n) for n in frames]
    numbers += [numbers[-1]] * (-len(numbers) % temporal)
    seconds = [n / fps for n in numbers]
    return [(seconds[k] + seconds[k + temporal - 1]) / 2 for k in range(0, len(seconds), temporal)]


class ChatTokens:
    """The tokenizer of a model, with its chat form.

    ``folder`` holds ``tokenizer.json``.  Cheap to send to another process, where it is read anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "tokenizer.json"
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"{path}: no tokenizer: {in_a_line(error)}") from None
        # a text that spells a special token is tokenized as text
        self._tokenizer.encode_special_tokens = True
        self._pieces = Pieces(self._tokenizer)
        self.im_start = self._id("<|im_start|>")
        self.im_end = self._id("<|im_end|>")
        self.vision_start = self._id("<|vision_start|>")
        self.vision_end = self._id("<|vision_end|>")
        self.image_pad = self._id("<|image_pad|>")
        self.video_pad = self._id("<|video_pad|>")
        self.end_of_text = self._id("<|endoftext|>")

    def __reduce__(self) -> tuple[type[ChatTokens], tuple[Path]]:
        return type(self), (self.folder,)

    @classmethod
    def of_model(cls, model: str | os.PathLike[str]) -> ChatTokens:
        """From a model's folder or hub id, its chat template checked.  Raises InputError."""
        folder = Path(model)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            try:
                folder = Path(snapshot_download(str(model), allow_patterns=list(_FILES)))
            except Exception as error:  # many kinds: no such repository, no network, no right
                raise InputError(
                    f"{model}: neither a folder nor on the hub: {in_a_line(error)}"
                ) from None
        tokens = cls(folder)
        tokens.check_template()
        return tokens

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the tokenizer does."""
        return xxhash.xxh3_64_hexdigest((self.folder / "tokenizer.json").read_bytes())

    def encode(self, conversation: Conversation) -> Encoded:
        """Token ids of a conversation.  Raises BadSample for a video without its frames (those of
        a file are to be chosen before: :func:`brim.data.video.chosen`)."""
        writer = _Writer(self)
        for turn in conversation.turns:
            self._write_turn(writer, turn)
        return writer.finish()

    def pad(self, video: bool) -> int:
        """The id that stands where visual features go."""
        return self.video_pad if video else self.image_pad

    def text_ids(self, text: str, score_at: int | None = None) -> tuple[list[int], int]:
        """Ids of a text, and how many of them begin before character ``score_at``."""
        if score_at is None:
            ids = self._pieces.ids(text)
            if ids is not None:
                return ids, 0
        elif text[score_at : score_at + 1].strip():
            # "assistant\n" and an answer that starts with no white space never share a piece
            answer, role = self._pieces.ids(text[score_at:]), self._pieces.ids(text[:score_at])
            if answer is not None and role is not None:
                return role + answer, len(role)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        first = 0
        while first < len(encoding) and encoding.token_to_chars(first)[0] < (score_at or 0):
            first += 1
        return encoding.ids, first

    def check_template(self) -> None:
        """Compare a probe with the model's own template.  Raises InputError when they differ."""
        from transformers import AutoTokenizer

        reference = AutoTokenizer.from_pretrained(str(self.folder))
        if not reference.chat_template:
            raise InputError(
                f"{self.folder}: the tokenizer has no chat template",
                hint="use the folder of an instruct model; a base model has none",
            )
        expected = reference.apply_chat_template(_PROBE_MESSAGES, tokenize=True, return_dict=False)
        found = self.encode(_PROBE).ids.tolist()
        pad = [at for at, token in enumerate(expected) if token == self.image_pad]
        if [t for at, t in enumerate(expected) if at not in pad] != found:
            raise InputError(
                f"{self.folder}: the chat template is not the ChatML form of Qwen3-VL",
                hint="thinking variants rewrite earlier answers; brim trains the instruct form",
            )

    def _write_turn(self, writer: _Writer, turn: Turn) -> None:
        writer.control(self.im_start)
        writer.text(f"{turn.role}\n")
        if turn.role == "assistant":
            writer.score_from_here()
        for part in turn.parts:
            if isinstance(part, str):
                writer.text(part)
            elif isinstance(part, Image):
                writer.picture()
            else:
                writer.video(_frame_times(part))
        writer.control(self.im_end)
        writer.stop_scoring()
        writer.text("\n")

    def _id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise InputError(f"{self.folder}: the tokenizer has no {token}; Qwen3-VL's has")
        return int(found)


def _frame_times(video: Video) -> list[float]:
    if video.clip is not None:
        return timestamps(video.clip.frames, video.clip.fps)
    if not video.frames:
        raise BadSample("video.empty", "a video without frames")
    return timestamps(range(len(video.frames)), video.fps or 2.0)


class _Writer:
    """Collects text until a control token comes, then tokenizes it in one piece."""

    def __init__(self, tokens: ChatTokens) -> None:
        self.tokens = tokens
        self.pictures = 0
        self._pending: list[str] = []
        self._score_at: int | None = None  # characters of the pending text that are not scored
        self._scoring = False
        self._ids: list[int] = []
        self._scored: list[tuple[int, int]] = []
        self._blocks: list[tuple[int, int]] = []

    def text(self, text: str) -> None:
        self._pending.append(text)

    def score_from_here(self) -> None:
        self._score_at = sum(map(len, self._pending))

    def stop_scoring(self) -> None:
        self._scoring = False

    def control(self, token: int) -> None:
        self._flush()
        if self._scoring:
            self._scored.append((len(self._ids), len(self._ids) + 1))
        self._ids.append(token)

    def picture(self) -> None:
        self._block()
        self.pictures += 1

    def video(self, times: Sequence[float]) -> None:
        for seconds in times:
            self.text(f"<{seconds:.1f} seconds>")
            self._block()
        self.pictures += 1

    def _block(self) -> None:
        self.control(self.tokens.vision_start)
        self._blocks.append((len(self._ids), self.pictures))
        self._ids.append(self.tokens.vision_end)

    def _flush(self) -> None:
        text = "".join(self._pending)
        self._pending.clear()
        score_at, self._score_at = self._score_at, None
        if not text:
            return
        ids, prompt = self.tokens.text_ids(text, score_at)
        start = len(self._ids)
        self._ids += ids
        if score_at is not None:
            # a token that begins in the role's line belongs to the prompt, even where it reaches
            # into the answer (an answer that starts with a line break)
            self._scored.append((start + prompt, len(self._ids)))
            self._scoring = True

    def finish(self) -> Encoded:
        self._flush()
        ids = np.array(self._ids, dtype=np.int32)
        scored = np.zeros(len(ids), dtype=np.bool_)
        for start, end in self._scored:
            scored[start:end] = True
        return Encoded(ids, scored, tuple(self._blocks))


# exercises every rule of the form: a system turn, two exchanges, an image between texts
_PROBE = Conversation(
    (
        Turn("system", ("Be brief. ",)),
        Turn("user", (" What is", Image(b""), "\n\nthis? ")),
        Turn("assistant", ("\nA cat.\n",)),
        Turn("user", ("Sure?",)),
        Turn("assistant", ("Yes.",)),
    )
)
_PROBE_MESSAGES: list[dict[str, Any]] = [
    {
        "role": turn.role,
        "content": [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in turn.parts
        ],
    }
    for turn in _PROBE.turns
]
