"""Rows for other trainers: torch's DataLoader, transformers' own model, exact resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.pictures import picture
from tests.data.test_loader import prepared_set
from tests.data.test_rows import document, row, still
from torch.utils.data import DataLoader
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from brim.data.chat import Image, Video
from brim.data.dataset import IGNORED, RowDataset, collate_rows
from brim.data.geometry import Grid
from brim.data.prepare import Prepared
from brim.data.rows import Document, Picture
from brim.data.tokens import ChatTokens
from brim.errors import UsageError


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, small_folder: Path) -> Prepared:
    return prepared_set(tmp_path_factory.mktemp("set"), small_folder, 20)


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = Qwen3VLConfig(
        text_config={
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
            "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 151_936,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 5e6, "mrope_section": [3, 3, 2]
            },
        },
        vision_config={
            "hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 64,
            "out_hidden_size": 64, "deepstack_visual_indexes": [0],
        },
        image_token_id=151_655, video_token_id=151_656,
        vision_start_token_id=151_652, vision_end_token_id=151_653,
    )  # fmt: skip
    return Qwen3VLForConditionalGeneration(config).eval()


def as_batch(documents: list[Document], length: int) -> dict[str, Any]:
    fields = row(documents, length)
    return collate_rows(
        [{k: torch.from_numpy(v) if k != "counts" else v for k, v in fields.items()}]
    )


def test_a_packed_row_has_the_loss_of_its_documents_in_transformers_model(
    chat_tokens: ChatTokens,
) -> None:
    clip = Picture(tuple(picture(64, 96, s) for s in range(4)), True, Grid(2, 4, 6))
    documents = [
        document(chat_tokens, [Image(""), "what?"], [still(4, 6)], 10),
        document(chat_tokens, ["no picture"], [], 11),
        document(
            chat_tokens,
            ["see ", Video(("1", "2", "3", "4")), Image("")],
            [clip, still(2, 8, 5)],
            12,
        ),
    ]
    model = tiny_model()
    total, count = 0.0, 0
    with torch.no_grad():
        for alone in documents:
            batch = as_batch([alone], len(alone))
            scored = int((batch["labels"] != IGNORED).sum())
            total += float(model(**batch).loss) * scored
            count += scored
        packed = as_batch(documents, 200)
        loss = float(model(**packed).loss)
    assert int((packed["labels"] != IGNORED).sum()) == count
    assert loss == pytest.approx(total / count, abs=2e-5)


def planned(prepared: Prepared, steps: int) -> list[tuple[int, ...]]:
    return [
        prepared.plan.step(step)[place].samples
        for step in range(steps)
        for place in prepared.plan.share(step, 1)[0]
    ]


def test_a_data_loader_gives_every_row_of_its_epochs(prepared: Prepared) -> None:
    rows = RowDataset(prepared, epochs=2)
    batches = list(DataLoader(rows, batch_size=1, collate_fn=collate_rows))
    assert len(batches) == len(rows) == prepared.plan.steps(2) * 4
    assert batches[0]["input_ids"].shape == (1, 512)
    assert batches[0]["position_ids"].shape == (4, 1, 512)
    patches = sum(int(grid.prod()) for grid in batches[0]["image_grid_thw"])
    assert batches[0]["pixel_values"].shape == (patches, 1536)
    assert rows.state_dict() == {}  # an iteration that ended begins anew


def test_a_state_taken_after_any_row_resumes_behind_it(prepared: Prepared) -> None:
    expected = planned(prepared, prepared.plan.steps(1))
    first = RowDataset(prepared)
    for number, fields in enumerate(first):
        assert fields["sample_ids"] == expected[number]
        if number == 2:
            break
    state = json.loads(json.dumps(first.state_dict()))
    resumed = RowDataset(prepared)
    resumed.load_state_dict(state)
    assert [fields["sample_ids"] for fields in resumed] == expected[3:]


def test_workers_of_a_data_loader_are_refused(prepared: Prepared) -> None:
    loader = DataLoader(RowDataset(prepared), batch_size=None, num_workers=1)
    with pytest.raises(UsageError, match="num_workers=0"):
        next(iter(loader))


def test_a_batch_of_two_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="batch size to 1"):
        collate_rows([{}, {}])
