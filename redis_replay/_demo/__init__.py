"""The main job, end to end: actors play CartPole, a learner trains on what they write, all through one buffer.

board    what the processes tell each other beside the buffer: weights, ended episodes, progress
actor    one process that plays and writes transitions
learner  the process that samples, trains and publishes weights
dqn      the network as actors use it, in numpy, and every number that was chosen
trainer  the network as the learner trains it, in torch
view     what the person at the terminal sees
run      the job as a whole: its beginning, its goal, its end
"""
