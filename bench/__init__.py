"""Programs that measure rkserve against its budgets and against others doing the same work in the same run.

Run by hand or by `make bench`, never by the tests: figures depend on the machine. They use the server from
outside (HTTP) or through its public seams, and nothing in the server knows them.
"""

import os

# Here, before any program imports onnxruntime, which else reports to its maker; children inherit it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
