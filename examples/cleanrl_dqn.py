"""DQN in one file, as CleanRL writes it, with the replay buffer in Redis: 4 environments, one learner, one process.

python examples/cleanrl_dqn.py                                       # with a server of its own
python examples/cleanrl_dqn.py --url redis://localhost:6379/0

What is CleanRL's ReplayBuffer there, is here `rb`, and its `rb.add(...)` is the recorder around the environments: others may
write to and draw from the same buffer meanwhile. The last line that it prints is JSON.
"""

import argparse
import json

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional

from redis_replay import ReplayBuffer
from redis_replay.gymnasium import VectorGymRecorder


def parse_args() -> argparse.Namespace:
    """The hyperparameters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="embedded://")
    parser.add_argument("--name", default="cleanrl-dqn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--buffer-size", type=int, default=50_000)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--tau", type=float, default=0.02)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--start-e", type=float, default=1.0)
    parser.add_argument("--end-e", type=float, default=0.02)
    parser.add_argument("--exploration-fraction", type=float, default=0.3)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--steps-per-update", type=int, default=4, help="transitions for each gradient step")
    return parser.parse_args()


class QNetwork(nn.Module):
    """A value for each action."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        inputs, outputs = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)
        self.network = nn.Sequential(
            nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def linear_schedule(start_e: float, end_e: float, duration: float, t: int) -> float:
    """Exploration at step t."""
    return max(end_e, start_e + (end_e - start_e) / duration * t)


def main() -> None:
    """Trains, and prints a line for each 2,000 steps."""
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)

    rb = ReplayBuffer(args.url, args.name, capacity=args.buffer_size, batch_size=args.batch_size, seed=args.seed, fresh=True)
    envs = gym.make_vec(args.env_id, num_envs=args.num_envs, vectorization_mode="sync")
    envs = VectorGymRecorder(gym.wrappers.vector.RecordEpisodeStatistics(envs), rb, batch_size=32)

    q_network, target_network = QNetwork(envs), QNetwork(envs)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = optim.Adam(q_network.parameters(), lr=args.learning_rate)
    returns: list[float] = []
    updates = 0

    obs, _ = envs.reset(seed=args.seed)
    for global_step in range(0, args.total_timesteps, args.num_envs):
        epsilon = linear_schedule(
            args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, global_step
        )  # fmt: skip
        with torch.no_grad():
            greedy = q_network(torch.as_tensor(obs)).argmax(1).numpy()
        explores = rng.random(args.num_envs) < epsilon
        obs, _, _, _, infos = envs.step(
            np.where(explores, rng.integers(envs.single_action_space.n, size=args.num_envs), greedy)
        )
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()

        while global_step >= args.learning_starts and updates < (global_step - args.learning_starts) // args.steps_per_update:
            data = {key: torch.from_numpy(value) for key, value in rb.sample(wait=True, timeout=30).items()}
            with torch.no_grad():
                best = q_network(data["next_observation"]).argmax(1, keepdim=True)
                after = target_network(data["next_observation"]).gather(1, best).squeeze(1)
                goal = data["reward"] + args.gamma * after * ~data["terminated"]
            value = q_network(data["observation"]).gather(1, data["action"].unsqueeze(1)).squeeze(1)
            loss = functional.smooth_l1_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            with torch.no_grad():
                for slow, fast in zip(target_network.parameters(), q_network.parameters(), strict=True):
                    slow.lerp_(fast, args.tau)
        if global_step % 2_000 < args.num_envs and returns:
            print(f"step {global_step:6}: {updates} updates, {len(returns)} episodes, mean return {np.mean(returns[-20:]):.1f}")

    envs.close()
    figures = {"updates": updates, "episodes": len(returns), "write_count": rb.write_count}
    print(json.dumps(figures | {"first": float(np.mean(returns[:20])), "last": float(np.mean(returns[-20:]))}))
    rb.delete()


if __name__ == "__main__":
    main()
