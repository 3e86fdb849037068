"""Asks the server in this container whether it serves: exit code 0 if it does. For the image's HEALTHCHECK.

It asks /health, not /ready: whoever restarts what is unhealthy must not restart a server that loads a model.
The address is that of the settings' variables; a server that was given `--port` instead is not found.
"""

from __future__ import annotations

import http.client
import os

TIMEOUT_S = 8
WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def main() -> None:
    """Ask once. Raises SystemExit with 0, or with what is wrong."""
    host = os.environ.get("RKSERVE_HOST", "")
    port = int(os.environ.get("RKSERVE_PORT") or 8000)
    connection = http.client.HTTPConnection(WILDCARDS.get(host, host), port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except OSError as error:
        raise SystemExit(f"no answer on port {port}: {error}") from None
    raise SystemExit(0 if status == 200 else f"/health answers {status}")


if __name__ == "__main__":
    main()
