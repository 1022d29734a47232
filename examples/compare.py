"""Do two algorithms differ by more than luck? Trains both on one dataset with several seeds, and
prints their scores with intervals, and the interval of the difference:

python compare.py pendulum/medium iql bc --steps 5000 --seeds 5"""

import argparse

import numpy as np

import longreach as lr
from experiments.settings import preset_config
from mbrl import data
from mbrl.statistics import confidence_interval, mean, paired_comparison

parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?", default="pendulum/medium")
parser.add_argument("algorithms", nargs="*", default=["iql", "bc"])
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--seeds", type=int, default=3)
options = parser.parse_args()

dataset = data.load(options.data)
task = lr.make(dataset.spec.task)
scores = {}
for name in options.algorithms:
    algorithm, _ = lr.ALGORITHMS[name]
    config = preset_config(name, options.data)
    runs = []
    for seed in range(options.seeds):
        agent = algorithm(dataset.spec, config, seed=seed)
        agent.fit(dataset, options.steps, callbacks=[])
        returns = lr.evaluate(agent, task, episodes=20)  # the same starts for all
        runs.append(float(dataset.spec.score(returns).mean()))  # 0 random, 100 expert
    scores[name] = np.array(runs)[:, None]  # [seeds, tasks]
    interval = confidence_interval(scores[name], mean)
    print(f"{name}: {interval.estimate:.1f} [{interval.low:.1f}, {interval.high:.1f}]")

first, *others = options.algorithms
for name, found in paired_comparison(scores, reference=first).items():
    gap = found.difference
    differs = "differs" if gap.low > 0 or gap.high < 0 else "may be luck"
    print(f"{name} less {first}: {gap.estimate:.1f} [{gap.low:.1f}, {gap.high:.1f}]: {differs}")
