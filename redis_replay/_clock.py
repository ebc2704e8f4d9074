"""The time of handles: a caller's timeout is counted by its own monotonic clock, in seconds."""

import time

monotonic = time.monotonic
sleep = time.sleep
