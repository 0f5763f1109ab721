"""What the service answers when it does not do what it was asked."""

from typing import Any

BROKEN = "something went wrong here; the log of the service says more."


class Refusal(Exception):
    """An answer with an HTTP status and a message for the caller; `details` say more, as JSON."""

    def __init__(self, status: int, message: str, **details: Any):
        super().__init__(message)
        self.status, self.message, self.details = status, message, details

    def answer(self) -> dict[str, Any]:
        return {"error": self.message, **self.details}


def busy(what: str) -> Refusal:
    """The service has as much to do as it takes on."""
    return Refusal(429, f"too busy: {what}. Try again in a second.", retry=1)
