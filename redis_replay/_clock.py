"""The only place that asks for the time: a caller's timeout is counted by its own monotonic clock, in seconds."""

import time

monotonic = time.monotonic
sleep = time.sleep
