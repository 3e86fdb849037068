"""A plain web server for files that knows ranges, as those of a NAS do."""

from __future__ import annotations

import os
import re
from http.server import SimpleHTTPRequestHandler


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves a directory; one range a request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        path = self.translate_path(self.path)
        if found is None or not os.path.isfile(path):
            super().do_GET()
            return
        start, end, size = int(found[1]), int(found[2]), os.path.getsize(path)
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(end - start + 1)
        self.send_response(206)
        self.send_header("content-range", f"bytes {start}-{end}/{size}")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
