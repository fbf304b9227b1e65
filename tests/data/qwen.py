"""Qwen's tokenizer, built from the vocabulary that the dashscope package ships.

The vocabulary is tiktoken's (token → rank); a BPE's merges follow from it: each token is the merge
of the two parts that its own bytes still have when all lower ranks are merged.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = {
    "<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645,
    "<|object_ref_start|>": 151646, "<|object_ref_end|>": 151647, "<|box_start|>": 151648,
    "<|box_end|>": 151649, "<|quad_start|>": 151650, "<|quad_end|>": 151651,
    "<|vision_start|>": 151652, "<|vision_end|>": 151653, "<|vision_pad|>": 151654,
    "<|image_pad|>": 151655, "<|video_pad|>": 151656,
}  # fmt: skip

# The rules of Qwen3-VL's instruct template without its tools, and with the answers marked for
# transformers' own loss mask.
_CONTENT = """
    {%- if message.content is string %}{{- message.content }}{%- else %}
        {%- for content in message.content %}
            {%- if content.type == 'image' or 'image' in content %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif content.type == 'video' or 'video' in content %}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in content %}{{- content.text }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>' }}
"""
TEMPLATE = f"""\
{{%- for message in messages %}}
    {{{{- '<|im_start|>' + message.role + '\\n' }}}}
    {{%- if message.role == 'assistant' %}}
    {{%- generation %}}{_CONTENT}{{%- endgeneration %}}
    {{%- else %}}{_CONTENT}{{%- endif %}}
    {{{{- '\\n' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}
"""


def _parts(token: bytes, ranks: dict[bytes, int], below: int) -> tuple[bytes, bytes]:
    """The two pieces of ``token`` after all merges of ranks under ``below``."""
    pieces = [bytes([b]) for b in token]
    while len(pieces) > 2:
        scores = [ranks.get(left + right, below) for left, right in itertools.pairwise(pieces)]
        best = min(range(len(scores)), key=scores.__getitem__)
        assert scores[best] < below
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
    return pieces[0], pieces[1]


def build_small(folder: Path) -> None:
    """The same form with a vocabulary of single bytes: it loads at once."""
    alphabet = _byte_alphabet()
    _save({alphabet[b]: b for b in range(256)}, [], folder)


def build(folder: Path) -> None:
    """Write Qwen's ``tokenizer.json`` and a chat template into ``folder``."""
    found = importlib.util.find_spec("dashscope")
    if found is None or found.origin is None:
        pytest.skip("the vocabulary comes with the package dashscope")
    source = Path(found.origin).parent / "resources" / "qwen.tiktoken"
    lines = (line.split() for line in source.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    alphabet = _byte_alphabet()
    shown = {token: "".join(alphabet[b] for b in token) for token in ranks}
    merges = [
        (shown[left], shown[right])
        for token, rank in ranks.items()
        if len(token) > 1
        for left, right in [_parts(token, ranks, rank)]
    ]
    _save({shown[token]: rank for token, rank in ranks.items()}, merges, folder)


def _save(vocabulary: dict[str, int], merges: list[tuple[str, str]], folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    first = tokenizer.token_to_id("<|endoftext|>")
    assert [tokenizer.token_to_id(t) - first for t in SPECIAL] == list(range(len(SPECIAL)))
    assert not merges or first == SPECIAL["<|endoftext|>"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=TEMPLATE,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    fast.save_pretrained(folder)


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(rest)}
