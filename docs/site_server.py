"""The built site on a free port of this machine, for a browser that checks it."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: The index of the search, which every page loads and prepares in about a second.
INDEX = "/search/search_index.json"


class Site(SimpleHTTPRequestHandler):
    """The files of the site, served without a log on the terminal.

    The index of the search has entries for the start page only.
    """

    protocol_version = "HTTP/1.1"  # one connection for many files

    def do_GET(self) -> None:
        if self.path != INDEX or urlsplit(self.headers.get("Referer", "")).path == "/":
            return super().do_GET()
        body = json.dumps(
            {**json.loads(Path(self.directory, INDEX[1:]).read_text()), "docs": []}
        ).encode()
        self.send_response(200)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        if self.path == INDEX:  # pages get different contents
            self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *words: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
