"""Runs an application until the process is stopped."""

import signal
import socket
from typing import Any

import uvicorn

from ...base.errors import reraise_as_value_error


def serve(app: Any, host: str = "127.0.0.1", port: int = 5000) -> None:
    """Serve until SIGTERM or Ctrl-C. Requests that were accepted before are answered.

    Args:
        app: an ASGI application.
        host: address to listen on.
        port: port to listen on; 0 for a free one.

    Raises:
        ValueError: the address is not available.
        KeyboardInterrupt: after Ctrl-C.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with reraise_as_value_error(f"host and port must be available, got {host} and {port}"):
        listener = socket.create_server((host, port), family=family, backlog=2048)
    with listener:
        address, port = listener.getsockname()[:2]
        print(f"http://{f'[{address}]' if ':' in address else address}:{port}", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which uvicorn raises again after it has handled it
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
