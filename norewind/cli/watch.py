"""`norewind watch`: the live page of a run that another process trains."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from norewind.cli.serve import TOKEN, listen, listening, needed, token_for
from norewind.runs.settings import option


def watch(
    run: Annotated[Path, Positional],
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    token_file: Annotated[Path | None, option("FILE", f"the environment variable {TOKEN}")] = None,
) -> None:
    """Show the live page of a run folder that another process trains or has trained.

    The folder is only read. The newest rows come from predictions.jsonl if the run writes
    it (--predictions file), or else from its newest checkpoint.

    Args:
        run: The run folder.
        port: The port to listen on; 0 for any free port.
        host: The address to listen on. An address that other machines can reach needs a token.
        token_file: A file with the token that requests must send.
    """
    from norewind.cli.running import StopOnSignal, friendly

    with StopOnSignal() as stop, friendly("watch", stop=stop):
        app_of = needed()
        token = token_for(host, token_file)
        from norewind.serving.following import Following

        with listening(host, port) as listener:
            feed = Following(run).feed
            listen("watch", app_of.watch_app(feed, token), feed.end, listener, stop)
    raise SystemExit(stop.exit_code)
