"""The command `norewind`, also as `python -m norewind`."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while it is being imported ends the process at once, without a traceback."""
    by_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if by_python:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from norewind.cli import main as command

    if by_python:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command()
    finally:
        if by_python:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
