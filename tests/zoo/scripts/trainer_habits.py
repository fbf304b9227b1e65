"""Fine-tuning with the Hugging Face Trainer; it looks at its results now and then."""

from __future__ import annotations

from typing import Any

import torch
from _parts import arguments as parse
from _parts import caption, encode, qwen3_vl
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Texts(Dataset[dict[str, Tensor]]):
    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.tensor(encode(caption(self.first + index, 160)))
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


class Preview(TrainerCallback):
    """Writes a few continuations, so that one sees what is learnt."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            prompt = torch.tensor([encode("the old bridge")])
            out = kwargs["model"].generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False
            )
            print(out[0, prompt.shape[1] :].tolist())


def main() -> None:
    args = parse("previews", "evals", "saves", "fixed")
    torch.set_num_threads(1)
    often = {args.arm}
    settings = TrainingArguments(
        output_dir=str(args.data / "habits"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=args.steps or 60,
        logging_steps=20,
        eval_strategy="steps" if "evals" in often else "no",
        eval_steps=6,
        save_strategy="steps" if "saves" in often else "no",
        save_steps=2,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
    )
    Trainer(
        model=qwen3_vl(hidden=128 if "saves" not in often else 320, layers=4, depth=2),
        args=settings,
        train_dataset=Texts(0, 1000),
        eval_dataset=Texts(1000, 48),
        callbacks=[Preview(5 if "previews" in often else 1000)],
    ).train()


if __name__ == "__main__":
    main()
