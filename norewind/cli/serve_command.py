"""`norewind serve` and `norewind watch`: a trained run as a service, and the live page alone."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from norewind.cli.common import check_range, exit_with, until_stopped
from norewind.training.settings import SettingsError, option
from norewind.wording import missing_package

if TYPE_CHECKING:
    from norewind.serving.service import Service

TOKEN = "NOREWIND_TOKEN"
MIN_TOKEN_LENGTH = 16
# The exit code of a service that ends without having saved all rows that it accepted.
ROWS_LOST = 4
TokenFile = Annotated[Path | None, option("FILE", f"the environment variable {TOKEN}")]


def serve(
    run: Annotated[Path, Positional],
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    token_file: TokenFile = None,
    queue: int = 4096,
    waiting: int = 10_000,
    drain_seconds: float = 20.0,
) -> None:
    """Serve a trained run over HTTP: it predicts, keeps learning, and shows a live page.

    The run is saved in its folder, as in training. On Ctrl-C or SIGTERM, the service learns
    from everything it has accepted, saves the run, and ends. If accepted rows could not be
    saved, it says which ones and exits with 4. Needs `pip install '.[serve]'` in a clone.

        norewind serve runs/power --port 8000
        curl -d '{"row": {"power": 7.5}}' http://localhost:8000/predict
        curl -d '{"row": {"power": 7.5}}' http://localhost:8000/learn

    Args:
        run: The run folder.
        port: The port to listen on; 0 for any free port.
        host: The address to listen on. An address that other machines can reach needs a token.
        token_file: A file with the token that requests must send.
        queue: The maximum number of rows waiting to be learned from. Above it, requests are answered with 429.
        waiting: The maximum number of rows waiting for late labels. Above it, the oldest is dropped.
        drain_seconds: How long to learn from accepted rows when the service ends. The rest is dropped and reported.
    """
    check_range("--queue", queue, 1)
    check_range("--waiting", waiting, 0)
    check_range("--drain-seconds", drain_seconds, 0, threading.TIMEOUT_MAX)
    with until_stopped("serve", run) as stop, open_listener(host, port, token_file) as (listener, token):
        from norewind.serving.app import application
        from norewind.serving.service import Service

        service = Service(run, max_queue=queue, max_unlabeled=waiting, drain_seconds=drain_seconds)
        try:
            # A second Ctrl-C ends the wait for accepted rows.
            with suppress(KeyboardInterrupt):
                listen("serve", application(service.page, token, service), listener, stop, service.end)
        finally:
            service.close()
        report_lost_rows(service, drain_seconds)
        if service.error is not None:
            raise service.error


def report_lost_rows(service: "Service", drain_seconds: float) -> None:
    """End the command with a message and a distinct exit code if accepted rows were not saved.

    Args:
        service: the service, closed.
        drain_seconds: how long it was allowed to learn from them.
    """
    first, last = service.durable + 1, service.accepted
    if first <= last:
        why = service.problem or f"learning from them took longer than --drain-seconds {drain_seconds:g}."
        rows = f"row {last} was" if first == last else f"rows {first} to {last} were"
        exit_with(f"norewind serve: {rows} accepted but not saved: {why} Send them again.", ROWS_LOST)


def watch(
    run: Annotated[Path, Positional], *, port: int = 8000, host: str = "127.0.0.1", token_file: TokenFile = None
) -> None:
    """Show the live page of a run folder that another process trains or has trained.

    The folder is only read. The latest rows come from predictions.jsonl if the run writes
    it (--predictions file), or else from its latest checkpoint.

    Args:
        run: The run folder.
        port: The port to listen on; 0 for any free port.
        host: The address to listen on. An address that other machines can reach needs a token.
        token_file: A file with the token that requests must send.
    """
    with until_stopped("watch") as stop, open_listener(host, port, token_file) as (listener, token):
        from norewind.serving.app import application
        from norewind.serving.page_content import FolderContent

        page = FolderContent(run)
        listen("watch", application(page, token), listener, stop, page.end)


@contextmanager
def open_listener(host: str, port: int, token_file: Path | None) -> Iterator[tuple[socket.socket, str | None]]:
    """Open a listening socket and read the token. Called first, so that mistakes are reported immediately.

    Args:
        host: the address to listen on.
        port: the port; 0 for any free one.
        token_file: the file with the token; None for the environment variable.

    Raises:
        SettingsError: a package is missing, the token is unsuitable or missing, or the address cannot be used.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn.protocols.http.httptools_impl  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"serve: {missing_package(str(error.name), 'serve')}.") from None
    import jax

    from norewind.serving.access import is_local

    # Answers are computed in the calling thread: handing them to another one takes longer.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    token = token_file.read_text("utf-8", "replace").strip() if token_file else os.environ.get(TOKEN, "")
    if token and (len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token):
        raise SettingsError(
            f"the token must have at least {MIN_TOKEN_LENGTH} printable ASCII characters and no spaces."
        )
    if not token and not is_local(host):
        raise SettingsError(
            f"{host} can be reached from other machines, so a token is needed: --token-file FILE, or the environment "
            f"variable {TOKEN}. (python -c 'import secrets; print(secrets.token_urlsafe())' makes one.)"
        )
    check_range("--port", port, 0, 65535)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError, TypeError) as error:
        # Some host names are not even valid.
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot listen on {host}, port {port}: {why}.") from None
    with listener:
        yield listener, token or None


def listen(command: str, app: Any, listener: socket.socket, stop: Callable[[], bool], end: Callable[[], None]) -> None:
    """Announce the address and serve an application; see `norewind.serving.server.serve`.

    Args:
        command: the name of the command.
        app: the ASGI application.
        listener: the listening socket.
        stop: returns True when the service should end.
        end: called when the service ends.
    """
    from norewind.serving.server import serve as serve_app

    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    print(f"norewind {command}: {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    serve_app(app, listener, stop=stop, end=end)
