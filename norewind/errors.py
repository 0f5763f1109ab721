"""The base of the errors that norewind raises on purpose, and divergence. Importing this module does not import JAX."""

from typing import Any


class NorewindError(Exception):
    """The base of all errors whose message tells the user what is wrong, where, and what to do.

    Most of them are also a `ValueError`.

    >>> import norewind
    >>> try:
    ...     norewind.training.Settings("table.csv", rate=-1)
    ... except norewind.errors.NorewindError as error:
    ...     print(error)
    rate is -1: Expected float > 0.0.
    """


class Diverged(NorewindError, ArithmeticError):
    """Raised when a run has diverged. Its last good checkpoint is kept.

    Args:
        reason: why it counts as diverged, as a sentence.
        samples: the number of the sample at which this was noticed.
        run: the last good run; None if there is only a checkpoint.
        remedy: what to do, as further sentences of the message.

    Attributes:
        reason: as above.
        samples: as above.
        run: as above.
    """

    def __init__(self, reason: str, samples: int, run: Any = None, remedy: str = ""):
        super().__init__(f"{reason} {remedy}".rstrip())
        self.reason = reason
        self.samples = samples
        self.run = run

    def __reduce__(self):
        # Sent from the process of a shard to its parent, which has no use for the run.
        return Diverged, (self.reason, self.samples)
