"""Stable-Baselines3's DQN with its replay buffer in Redis: trained, saved with the buffer's address, loaded, trained on.

python examples/sb3_dqn.py                                           # with a server of its own
python examples/sb3_dqn.py --url redis://localhost:6379/0

The last line that it prints is JSON.
"""

import argparse
import json
import tempfile
from pathlib import Path

import gymnasium as gym
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from redis_replay import ReplayBuffer
from redis_replay.embedded import resolve
from redis_replay.stable_baselines3 import RedisReplayBuffer


def main() -> None:
    """Trains in two halves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="embedded://")
    parser.add_argument("--name", default="sb3-dqn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timesteps", type=int, default=10_000)
    args = parser.parse_args()
    torch.set_num_threads(1)

    server = resolve(args.url) if args.url.startswith("embedded:") else None
    url = server.url if server else args.url
    env = make_vec_env("CartPole-v1", n_envs=4, seed=args.seed)
    model = DQN(
        "MlpPolicy", env, learning_rate=2.3e-3, batch_size=64, buffer_size=50_000, learning_starts=1_000, gamma=0.99,
        target_update_interval=10, train_freq=32, gradient_steps=64, exploration_fraction=0.3, exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [64, 64]}, seed=args.seed, device="cpu",
        replay_buffer_class=RedisReplayBuffer, replay_buffer_kwargs={"url": url, "name": args.name},
    )  # fmt: skip
    test_env = Monitor(gym.make("CartPole-v1"))
    before, _ = evaluate_policy(model, test_env, n_eval_episodes=5)
    model.learn(args.timesteps // 2)

    with tempfile.TemporaryDirectory() as folder:  # another program could go on here, on another machine
        model.save(Path(folder) / "model")
        model.save_replay_buffer(Path(folder) / "buffer")
        size = sum(file.stat().st_size for file in Path(folder).glob("buffer*"))
        model.replay_buffer.close()
        model = DQN.load(Path(folder) / "model", env)
        model.load_replay_buffer(Path(folder) / "buffer")
    model.learn(args.timesteps // 2, reset_num_timesteps=False)
    after, _ = evaluate_policy(model, test_env, n_eval_episodes=5)
    model.replay_buffer.close()

    with ReplayBuffer(url, args.name) as rb:
        figures = {"before": before, "after": after, "write_count": rb.write_count, "pickle_bytes": size}
        rb.delete()
    print(json.dumps(figures))
    if server:
        server.close()


if __name__ == "__main__":
    main()
