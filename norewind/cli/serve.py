"""`norewind serve`: a trained run as a service."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from norewind.runs.settings import SettingsError, option

TOKEN = "NOREWIND_TOKEN"
SHORTEST_TOKEN = 16


def serve(
    run: Annotated[Path, Positional],
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    token_file: Annotated[Path | None, option("FILE", f"the environment variable {TOKEN}")] = None,
    queue: int = 4096,
    waiting: int = 10_000,
) -> None:
    """Serve a trained run over HTTP: it predicts, keeps learning, and shows a live page.

        norewind serve runs/power --port 8000
        curl -d '{"row": {"power": 7.5}}' http://localhost:8000/predict
        curl -d '{"row": {"power": 7.5}}' http://localhost:8000/learn

    What is learned is saved in the run folder, as in training. On Ctrl-C or SIGTERM, the
    service learns and saves everything it has accepted, and ends. Needs `pip install 'norewind[serve]'`.

    Args:
        run: The run folder.
        port: The port to listen on; 0 for any free port.
        host: The address to listen on. An address that other machines can reach needs a token.
        token_file: A file with the token that requests must send.
        queue: The largest number of rows that may wait to be learned from. Beyond it, requests are answered with 429.
        waiting: The largest number of rows that may wait for late labels. Beyond it, the oldest is dropped.
    """
    from norewind.cli.running import StopOnSignal, friendly

    if queue < 1 or waiting < 0:
        raise SettingsError("--queue must be at least 1, and --waiting at least 0.")
    with StopOnSignal() as stop, friendly("serve", run, stop):
        app_of = needed()
        token = token_for(host, token_file)
        with listening(host, port) as listener:
            service = app_of.Service(run, queue=queue, waiting=waiting)
            service.open()
            try:
                listen("serve", app_of.service_app(service, token), service.end, listener, stop)
            finally:
                service.close()
        if service.learning.error is not None:
            raise service.learning.error
    raise SystemExit(stop.exit_code)


def needed() -> Any:
    """The application, whose packages are an extra."""
    try:
        import starlette  # noqa: F401
        import uvicorn.protocols.http.httptools_impl  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'norewind[serve]'") from None
    import jax

    from norewind.serving import app

    # An answer is computed by the thread that waits for it: handing it to another one takes longer.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return app


def token_for(host: str, file: Path | None) -> str | None:
    """The token, where one is given; an address that others can reach needs one."""
    from norewind.serving.guard import is_local

    token = file.read_text("utf-8", "replace").strip() if file else os.environ.get(TOKEN, "")
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
        raise SettingsError(f"the token must have at least {SHORTEST_TOKEN} letters, digits or signs, without spaces.")
    if not token and not is_local(host):
        raise SettingsError(
            f"{host} can be reached from other machines, so a token is needed: --token-file FILE, or the environment "
            f"variable {TOKEN}. (python -c 'import secrets; print(secrets.token_urlsafe())' makes one.)"
        )
    return token or None


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. It is opened first, so that a wrong address is reported at once."""
    if not 0 <= port < 65536:
        raise SettingsError(f"--port must be from 0 to 65535, but it is {port}.")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError, TypeError) as error:
        # A name may be one that no host can have.
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot listen on {host}, port {port}: {why}.") from None


def listen(command: str, app: Any, end: Callable[[], None], listener: socket.socket, stop: Callable[[], bool]) -> None:
    from norewind.serving.server import serve as serve_app

    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    words = f"norewind {command}: {address} (Ctrl-C ends it)"
    serve_app(app, listener, stop=stop, end=end, ready=lambda: print(words, file=sys.stderr, flush=True))
