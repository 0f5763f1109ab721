"""The interface of everything that runs a learner for many keys."""

from abc import ABC, abstractmethod

import numpy as np

from norewind.core.trees import Tree

# The arrays that keys have for themselves, by name, with one entry per slot along the leading axis.
SlotArrays = dict[str, np.ndarray]


class KeyedProgram(ABC):
    """Runs a learner for many keys, as returned by `Learner.for_keys`.

    It knows neither the names of the keys nor which of them are in memory. To it, a key is a slot: an index into
    the arrays of all keys.

    Attributes:
        own: the initial arrays that every key has for itself, by name.
        shared: the initial value of everything that all keys share.
        any_order: whether the results of a key do not depend on other keys, not even by rounding, so that only the rows
            of each key need to be in order.
    """

    own: dict[str, np.ndarray]
    shared: Tree
    any_order: bool

    @abstractmethod
    def learn(
        self,
        shared: Tree,
        arrays: SlotArrays,
        slots: np.ndarray,
        xs: Tree,
        targets: Tree,
        scales: np.ndarray | None = None,
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray]:
        """Learn from rows, in order.

        Args:
            shared: the part that all keys share; it must not be used afterwards.
            arrays: the arrays of all slots, changed in place.
            slots: the slot of each row's key.
            xs: the inputs of the rows.
            targets: their targets.
            scales: the mean and the standard deviation of each target that the inputs are standardised with (rows,
                targets, 2); NaN while a key has too few rows. None if they never change.

        Returns:
            The new shared part, the losses, the outputs made at the rows, and the earlier outputs for these rows.
        """

    @abstractmethod
    def forward(self, arrays: SlotArrays, xs: Tree, scales: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the outputs that `learn` would give if row i were the next row of the key in slot i.

        Args:
            arrays: the arrays of the keys; they must not be used afterwards.
            xs: the inputs of the rows.
            scales: as for `learn`.

        Returns:
            The outputs made at the rows, and the earlier outputs for these rows.

        Raises:
            ModelError: the keys share one model.
        """

    @abstractmethod
    def upcoming(self, record: np.ndarray) -> np.ndarray:
        """Return the forecasts of the next rows of a key, the nearest row first.

        Args:
            record: the entries of the key in all arrays.
        """


class KeyedLoop(KeyedProgram):
    """A program that is one compiled loop over the rows, in the order of the stream. Keys share nothing.

    Attributes:
        outputs: the number of outputs of a row.
    """

    shared: Tree = ()
    any_order = True
    outputs: int

    def forward(self, arrays: SlotArrays, xs: Tree, scales: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        unknown = np.full((len(xs), self.outputs), np.nan, np.float32)
        _, _, made, due = self.learn((), arrays, np.arange(len(xs)), xs, unknown, scales)
        return made, due
