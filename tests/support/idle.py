"""A child that prints a line when it runs, and then waits to be ended: ``python -m tests.support.idle``."""

import signal

if __name__ == "__main__":
    print("up", flush=True)
    signal.pause()
