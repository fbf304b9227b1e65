"""Loops of an unusual form, each of them sound."""

from __future__ import annotations

import torch
from _parts import Classifier, Decoder, arguments, caption, encode
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def adversarial(steps: int) -> None:
    """A generator and a discriminator with an optimizer each."""
    generator = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3 * 32 * 32), nn.Tanh())
    critic = Classifier(width=48, classes=1)
    first = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    second = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loader = DataLoader(TensorDataset(torch.rand(steps * 32, 3, 64, 64)), batch_size=32)
    for (real,) in loader:
        fake = generator(torch.randn(32, 64)).view(32, 3, 32, 32).repeat(1, 1, 2, 2)
        loss = critic(fake.detach()).mean() - critic(real).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        first.zero_grad()
        (-critic(fake).mean()).backward()
        first.step()


def by_hand(steps: int) -> None:
    """No optimizer: weights are updated in place."""
    model = Decoder(hidden=96, layers=3)
    for step in range(steps):
        ids = torch.tensor([encode(caption(step * 4 + i, 128)) for i in range(4)])
        loss = model(ids, ids)
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= 0.01 * weight.grad
                    weight.grad = None


def plain_update(steps: int) -> None:
    """Few large weights and the simplest of the optimizer's implementations."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=False)
    for _ in range(steps):
        x = torch.randn(512, 256)
        for _ in range(4):
            (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def recurrent(steps: int) -> None:
    """Small recurrent steps; matrix products are a small part."""
    model = nn.LSTM(32, 64, num_layers=2, batch_first=True)
    head = nn.Linear(64, 40)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
    loader = DataLoader(
        TensorDataset(torch.randn(steps * 48, 160, 32)), batch_size=48, num_workers=1
    )
    for (lines,) in loader:
        outputs, _ = model(lines)
        loss = head(outputs).log_softmax(-1)[..., 0].neg().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()


def varied(steps: int) -> None:
    """One document a step, of any length: the step time varies as the work does."""
    model = Decoder(hidden=96, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        size = 64 + int(700 * torch.rand((), generator=generator))
        ids = torch.tensor([encode(caption(step, size))])
        loss: Tensor = model(ids, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{step} {size} {loss.item():.3f}", flush=True)


LOOPS = {
    "adversarial": (adversarial, 120), "by-hand": (by_hand, 120), "plain": (plain_update, 120),
    "recurrent": (recurrent, 80), "varied": (varied, 90),
}  # fmt: skip


def main() -> None:
    args = arguments("adversarial", "by-hand", "plain", "recurrent", "varied")
    torch.set_num_threads(1)
    loop, steps = LOOPS[args.arm]
    loop(args.steps or steps)


if __name__ == "__main__":
    main()
