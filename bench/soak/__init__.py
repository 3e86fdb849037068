"""Many clients for long, while workers are killed and the log's disk is full: nothing wrong, nothing left.

Run it as `python -m bench.soak`. It stops at the first check that fails, else it prints figures and `ok`.
"""
