"""An actor process that records and a learner process that trains, on CartPole, with nothing between them but the buffer.

python examples/gym_recorder.py                                      # with a server of its own
python examples/gym_recorder.py --url redis://localhost:6379/0

The rate limiter keeps the two in step: each record is drawn `--samples-per-insert` times. The learner shuts the buffer down
when it has made its updates; that ends the actor. The weights lie in memory that the two share, since they run on one machine.
The last line that it prints is JSON.
"""

import argparse
import contextlib
import json
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import multiprocessing, nn, optim
from torch.nn import functional

from redis_replay import ReplayBuffer
from redis_replay.embedded import resolve
from redis_replay.exceptions import BufferShutDownError
from redis_replay.gymnasium import GymRecorder
from redis_replay.limiters import SampleToInsertRatio

BATCH, GAMMA, TAU = 128, 0.99, 0.02


def network() -> nn.Module:
    """A value for each action."""
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def act(url: str, name: str, seed: int, policy: nn.Module, returns: Any) -> None:
    """Plays and records until the buffer is shut down. Explores less and less over 4,000 steps."""
    torch.set_num_threads(1)
    rng, total, steps = np.random.default_rng(seed), 0.0, 0
    buffer = ReplayBuffer.attach(url, name, timeout=30)
    env = GymRecorder(gym.make("CartPole-v1"), buffer, batch_size=16)
    with contextlib.suppress(BufferShutDownError), buffer:
        obs, _ = env.reset(seed=seed)
        while True:
            explores = rng.random() < max(0.02, 1 - steps / 4_000)
            with torch.no_grad():
                action = int(rng.integers(2)) if explores else int(policy(torch.from_numpy(obs)).argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total, steps = total + reward, steps + 1
            if terminated or truncated:
                returns.put(total)
                obs, total = env.reset()[0], 0.0
    env.discard()  # what the shutdown left unwritten
    env.close()


def learn(url: str, name: str, seed: int, policy: nn.Module, updates: int) -> None:
    """Trains on what the actor records, and shuts the buffer down."""
    torch.set_num_threads(1)
    target = network()
    target.load_state_dict(policy.state_dict())
    optimizer = optim.Adam(policy.parameters(), lr=1e-3)
    with ReplayBuffer.attach(url, name, timeout=30, batch_size=BATCH, seed=seed) as buffer:
        for _ in range(updates):
            data = {key: torch.from_numpy(value) for key, value in buffer.sample(wait=True, timeout=30).items()}
            with torch.no_grad():
                best = policy(data["next_observation"]).argmax(1, keepdim=True)
                after = target(data["next_observation"]).gather(1, best).squeeze(1)
                goal = data["reward"] + GAMMA * after * ~data["terminated"]
            value = policy(data["observation"]).gather(1, data["action"].unsqueeze(1)).squeeze(1)
            optimizer.zero_grad()
            functional.smooth_l1_loss(value, goal).backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), policy.parameters(), strict=True):
                    slow.lerp_(fast, TAU)
        buffer.shutdown(drain=False)


def main() -> None:
    """Creates the buffer, starts the two, and waits for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="embedded://")
    parser.add_argument("--name", default="gym-recorder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=3_000)
    parser.add_argument("--samples-per-insert", type=float, default=32.0)
    args = parser.parse_args()

    server = resolve(args.url) if args.url.startswith("embedded:") else None
    url = server.url if server else args.url
    pace = SampleToInsertRatio(args.samples_per_insert, min_size_to_sample=1_000, error_buffer=8 * BATCH)
    rb = ReplayBuffer(url, args.name, capacity=50_000, rate_limiter=pace, fresh=True)
    torch.manual_seed(args.seed)
    policy = network().share_memory()
    context = multiprocessing.get_context("spawn")
    returns = context.SimpleQueue()
    jobs = [
        context.Process(target=act, args=(url, args.name, args.seed, policy, returns)),
        context.Process(target=learn, args=(url, args.name, args.seed, policy, args.updates)),
    ]
    for job in jobs:
        job.start()
    ended: list[float] = []
    while any(job.is_alive() for job in jobs) or not returns.empty():
        while not returns.empty():
            ended.append(returns.get())
        time.sleep(0.05)
    codes = [job.exitcode for job in jobs]

    stats = rb.stats()
    figures = {
        "episodes": len(ended),
        "write_count": stats["write_count"],
        "samples_returned": stats["samples_returned"],
        "exit_codes": codes,
    }
    print(json.dumps(figures | {"first": float(np.mean(ended[:20])), "last": float(np.mean(ended[-10:]))}))
    rb.delete()
    if server:
        server.close()


if __name__ == "__main__":
    main()
