"""The hybrid engine: matrix products in graphs on an executor, attention and all around it on the CPU."""

import os

# numpy's OpenBLAS reads this once, when numpy is imported. Its threads spin while they wait: on a machine
# with anything else to do, attention over 2,000 keys then takes up to 50 times as long as on one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
