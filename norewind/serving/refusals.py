"""How the service says no."""

from typing import Any

from starlette.responses import JSONResponse

BROKEN = "something went wrong here; the log of the service says more."


class Refusal(Exception):
    """An answer with an HTTP status and a message for the caller; `details` say more, as JSON."""

    def __init__(self, status: int, message: str, **details: Any):
        super().__init__(message)
        self.status, self.answer = status, {"error": message, **details}


def busy(what: str) -> Refusal:
    """The service has as much to do as it takes on."""
    return Refusal(429, f"too busy: {what}. Try again in a second.", retry=1)


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)
