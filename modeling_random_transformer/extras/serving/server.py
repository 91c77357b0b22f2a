"""Runs an application until the process is stopped."""

import gc
import logging
import signal
import socket
import threading
from asyncio import Transport
from asyncio.events import TimerHandle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...base.errors import reraise_as_value_error
from .directions import Direction
from .metrics import ACCESS_LOGGER

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 500  # limit for open connections; a process may usually open 1,024 files
HEAD_SECONDS = 10  # within which the head of a request must arrive
# Extra time for a head that arrived while the event loop was busy: uvloop runs timers before it reads.
GRACE_SECONDS = 1
IDLE_SECONDS = 30  # a connection without a request is closed after this time
RELOAD_LOCK = threading.Lock()


class BoundedProtocol(HttpToolsProtocol):
    """HTTP with a limit on open connections and a time limit for heads of requests, which uvicorn does not have."""

    head_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        else:
            self.start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.head_timer is None:
            self.start_timer()

    def on_headers_complete(self) -> None:
        self.stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_timer()
        super().connection_lost(exc)

    def start_timer(self) -> None:
        self.head_timer = self.loop.call_later(HEAD_SECONDS, self.close_soon)

    def close_soon(self) -> None:
        self.head_timer = self.loop.call_later(GRACE_SECONDS, self.transport.close)

    def stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None


def serve(
    app: Any,
    host: str = "127.0.0.1",
    port: int = 5000,
    *,
    reload: Callable[[], Sequence[Direction]] | None = None,
    access_log: bool = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C. Requests that were accepted before are answered.

    Args:
        app: the result of `create_app`.
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        reload: loads the models again, when the process receives SIGHUP. Requests are answered meanwhile.
        access_log: log each request on stderr: the address of the client, the path, the status and the time, but
            no texts and no keys.

    Raises:
        ValueError: the address is empty or not available.
        KeyboardInterrupt: after Ctrl-C.
    """
    if not host.strip():  # the operating system would listen on all addresses
        raise ValueError(f"host must be an address to listen on, such as 127.0.0.1, got {host!r}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with reraise_as_value_error(f"host and port must be available, got {host} and {port}"):
        listener = socket.create_server((host, port), family=family, backlog=2048)
    config = uvicorn.Config(
        app, http=BoundedProtocol, timeout_keep_alive=IDLE_SECONDS, log_level="warning", access_log=False
    )
    server = uvicorn.Server(config)
    with listener:
        # uvicorn raises the signal again after it has handled it. Before it handles signals, the server stops, too.
        signal.signal(signal.SIGTERM, server.handle_exit)
        address, port = listener.getsockname()[:2]
        print(f"http://{f'[{address}]' if ':' in address else address}:{port}", flush=True)
        if access_log:
            log_requests()
        if reload is not None and hasattr(signal, "SIGHUP"):  # Windows has none
            replace = partial(replace_models, app, reload)
            signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=replace).start())
        server.run(sockets=[listener])


def log_requests() -> None:
    """Write the log of requests to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    ACCESS_LOGGER.addHandler(handler)
    ACCESS_LOGGER.setLevel(logging.INFO)
    ACCESS_LOGGER.propagate = False


def replace_models(app: Any, load: Callable[[], Sequence[Direction]]) -> None:
    """Load the models of an application again. If one cannot be loaded, all stay.

    Calls in several threads run one after the other, so that the last one reads the newest models.
    """
    with RELOAD_LOCK:
        try:
            directions = load()
        except Exception as error:
            logger.error("The models were not loaded again: %s", error)
            return
        app.state.api.replace_directions(directions)
        gc.collect()  # the models before, whose modules refer to each other
        # A warning, so that the answer to the signal is shown by default.
        logger.warning("The models were loaded again.")
