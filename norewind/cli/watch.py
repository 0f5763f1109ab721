"""`norewind watch`: the live page of a run that is trained elsewhere."""

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
    """Show the live page of a run folder, in which another process trains or has trained.

    The folder is only read. The newest rows are those of predictions.jsonl if the run writes
    it (--predictions file), or else those of its newest checkpoint.

    Args:
        run: the run folder.
        port: the port to listen on; 0 for any that is free.
        host: the address to listen on. Any other than this machine's own needs a token.
        token_file: a file that holds the token that requests must bring.
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
