"""A model of CartPole's dynamics, trained by plain PyTorch: a recorder process plays at random, a DataLoader's workers draw.

python examples/dataloader.py                                        # with a server of its own
python examples/dataloader.py --url redis://localhost:6379/0

The last line that it prints is JSON.
"""

import argparse
import json
import multiprocessing

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from redis_replay import ReplayBuffer
from redis_replay.embedded import resolve
from redis_replay.gymnasium import GymRecorder
from redis_replay.torch import ReplayDataset


def record(url: str, name: str, steps: int, seed: int) -> None:
    """Plays at random, and writes what it sees."""
    with ReplayBuffer.attach(url, name, timeout=30) as buffer:
        env = GymRecorder(gym.make("CartPole-v1"), buffer, batch_size=64)
        env.action_space.seed(seed)
        env.reset(seed=seed)
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        env.close()


def main() -> None:
    """Trains while the recorder still plays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="embedded://")
    parser.add_argument("--name", default="dataloader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    server = resolve(args.url) if args.url.startswith("embedded:") else None
    url = server.url if server else args.url
    rb = ReplayBuffer(url, args.name, capacity=10_000, fresh=True)
    recorder = multiprocessing.get_context("spawn").Process(target=record, args=(url, args.name, args.steps, args.seed))
    recorder.start()

    dataset = ReplayDataset(url, args.name, batch_size=64, num_batches=args.batches, timeout=30, min_items=64, seed=args.seed)
    loader = DataLoader(dataset, batch_size=None, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for batch in loader:
        action = functional.one_hot(batch["action"], 2).float()
        change = (batch["next_observation"] - batch["observation"]) * 50  # a step takes 0.02 s
        loss = functional.mse_loss(model(torch.cat([batch["observation"], action], 1)), change)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    recorder.join()

    stats = rb.stats()
    figures = {"batches": len(losses), "samples_returned": stats["samples_returned"], "write_count": stats["write_count"]}
    print(json.dumps(figures | {"first": float(np.mean(losses[:20])), "last": float(np.mean(losses[-20:]))}))
    rb.delete()
    if server:
        server.close()


if __name__ == "__main__":
    main()
