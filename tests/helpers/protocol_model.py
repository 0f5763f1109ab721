"""Small models of two protocols, of which every state is visited: answers in transactions, and late labels.

A model is a state (a tuple that can be hashed), the actions that are possible in it, and what must hold. `explore`
visits all states, the nearest first, and returns the shortest schedule that breaks what must hold.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace


def explore(model):
    """The number of states, the shortest schedule to a broken one and why it is broken (None), and all schedules."""
    first = model.start()
    came = {first: ()}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        if why := model.broken(state):
            return len(came), (came[state], why), came
        for action, after in model.actions(state):
            if after not in came:
                came[after] = (*came[state], action)
                waiting.append(after)
    return len(came), None, came


@dataclass(frozen=True)
class Process:
    """A run that answers. `phase` is what it does next; a dead one may be started."""

    phase: str = "dead"
    position: int = 0
    epoch: int = 0
    offsets_sent: bool = False


@dataclass(frozen=True)
class Kafka:
    """Two processes, the folder that they share, and the brokers.

    Checkpoints, and the commit, are (position, epoch of the writer). `open` is the transaction: its epoch, the answers
    in it, and the checkpoint whose offsets were sent.
    """

    processes: tuple[Process, ...]
    checkpoints: frozenset = frozenset()
    epoch: int = 0
    committed: tuple | None = None
    open: tuple | None = None
    answers: tuple[int, ...] = ()
    crashes: int = 0
    starts: int = 0
    lost: str = ""


CYCLE = ("learn", "write", "offsets", "commit", "remove")


class KafkaModel:
    """Checkpoints, transactions, fencing and the handover of a partition, one message for each checkpoint.

    Args:
        order: the steps of a checkpoint.
        lock: whether a second process must wait for the folder. It cannot on every shared file system.
        fences: whether brokers reject a producer whose transactional id another one has taken.
        returns: whether a process begins at the committed checkpoint, instead of the latest one.
        removes_later: whether a new checkpoint also removes those with a later position.
    """

    def __init__(self, order=CYCLE, *, lock=False, fences=True, returns=True, removes_later=False, messages=3):
        self.order, self.lock, self.fences, self.returns = order, lock, fences, returns
        self.removes_later, self.messages = removes_later, messages
        self.most_crashes, self.most_starts = 2, 4

    def start(self):
        return Kafka((Process(), Process()))

    def actions(self, state) -> Iterator[tuple]:
        alive = [process.phase not in ("dead", "ended") for process in state.processes]
        for who, process in enumerate(state.processes):
            if alive[who]:
                yield (who, process.phase), self.act(state, who)
                if state.crashes < self.most_crashes:
                    dead = self._with(state, who, Process())
                    yield (who, "crash"), replace(dead, crashes=state.crashes + 1)
                if process.phase == "learn":  # its partition is revoked: it has saved and leaves the folder
                    yield (who, "leave"), self._abort(self._with(state, who, Process()), process.epoch)
            elif state.starts < self.most_starts and not (self.lock and any(alive)):
                yield (who, "start"), replace(self.begin(state, who), starts=state.starts + 1)

    def begin(self, state, who):
        """Fence the other one, abort its transaction, and go back to the committed checkpoint."""
        state = replace(state, epoch=state.epoch + 1, open=None)
        mark, there = state.committed, state.checkpoints
        if not self.returns:
            mark = max(there, default=None)
        if mark is not None and mark not in there:
            return replace(state, lost="the committed checkpoint is gone")
        kept = frozenset(c for c in there if mark is not None and (c == mark or c[0] < mark[0]))
        position = mark[0] if mark else 0
        phase = "learn" if position < self.messages else "ended"
        return self._with(replace(state, checkpoints=kept), who, Process(phase, position, state.epoch))

    def act(self, state, who):
        process = state.processes[who]
        fenced = self.fences and process.epoch != state.epoch
        name = process.position, process.epoch
        after = self._with(state, who, replace(process, phase=self._next(process)))
        match process.phase:
            case "learn":
                after = self._with(after, who, replace(after.processes[who], position=process.position + 1))
                _, sent, offsets = state.open or (process.epoch, (), None)
                # A fenced producer's messages are rejected; it notices when it commits.
                return after if fenced else replace(after, open=(process.epoch, (*sent, process.position + 1), offsets))
            case "write":
                return replace(after, checkpoints=state.checkpoints | {name})
            case "offsets":
                if fenced:
                    return self._with(state, who, Process())
                epoch, sent, _ = state.open or (process.epoch, (), None)
                return replace(after, open=(epoch, sent, name))
            case "commit":
                if fenced or state.open is None:
                    return self._with(state, who, Process())
                _, sent, offsets = state.open
                return replace(after, answers=state.answers + sent, committed=offsets, open=None)
            case "remove":
                return replace(after, checkpoints=self.cleaned(state.checkpoints, name))
        raise AssertionError(process)

    def cleaned(self, there, name):
        """With `keep=1`: the new checkpoint, and none that it replaces."""
        if self.removes_later:
            latest = max(there)
            return frozenset(c for c in there if c in (name, latest))
        return frozenset(c for c in there if c == name or c[0] > name[0])

    def _next(self, process):
        place = self.order.index(process.phase) + 1
        last = place == len(self.order)
        learned = process.position + (process.phase == "learn")
        return self.order[place] if not last else "learn" if learned < self.messages else "ended"

    def _with(self, state, who, process):
        processes = list(state.processes)
        processes[who] = process
        return replace(state, processes=tuple(processes))

    def _abort(self, state, epoch):
        return replace(state, open=None) if state.open and state.open[0] == epoch else state

    def broken(self, state) -> str | None:
        if state.lost:
            return state.lost
        done = state.committed[0] if state.committed else 0
        if state.answers != tuple(range(1, done + 1)):
            return f"the answers {state.answers} are visible, but {done} are committed"
        if state.committed and state.committed not in state.checkpoints:
            return "the committed checkpoint is gone"
        for process in state.processes:
            if process.phase != "dead" and process.epoch == state.epoch and process.position < done:
                return "it has committed more than it has learned"
        return self.recovers(state)

    def recovers(self, state) -> str | None:
        """Whatever has happened: when all have died, and one starts, each message is answered exactly once."""
        state = replace(state, processes=(Process(), Process()))
        state = self.begin(state, 0)
        while not state.lost and state.processes[0].phase not in ("dead", "ended"):
            state = self.act(state, 0)
        if state.lost or state.answers != tuple(range(1, self.messages + 1)):
            return state.lost or f"in the end, the answers are {state.answers}"
        return None


@dataclass(frozen=True)
class Labels:
    """A service: rows wait for their labels, are accepted, learned and durable. Files are those that a kill leaves.

    `waiting` and `accepted` are what the service holds, `file` is both as they were saved, `promised` are all rows that
    were ever saved, and `doing` is the checkpoint that is being written.
    """

    waiting: frozenset = frozenset()
    accepted: frozenset = frozenset()
    rows: int = 0
    learned: int = 0
    durable: int = 0
    checkpoint: int = 0
    file: tuple = (frozenset(), frozenset())
    promised: frozenset = frozenset()
    doing: tuple | None = None
    crashes: int = 0


class LabelsModel:
    """Rows 1 to `rows` are predicted, and completed in this order.

    Args:
        order: the steps of a checkpoint: the file of labels, the checkpoint itself, and forgetting what it contains.
        forgets_all: whether accepted rows are forgotten that the checkpoint does not contain.
    """

    def __init__(self, order=("labels", "checkpoint", "forget"), rows=3, crashes=2, *, forgets_all=False):
        self.order, self.rows, self.crashes, self.forgets_all = order, rows, crashes, forgets_all

    def start(self):
        return Labels()

    def actions(self, state):
        for row in range(state.rows + 1, self.rows + 1):
            if row not in state.waiting:
                yield ("predict", row), replace(state, waiting=state.waiting | {row})
        row = state.rows + 1
        if row <= self.rows:
            moved = {"waiting": state.waiting - {row}, "accepted": state.accepted | ({row} & state.waiting)}
            yield ("learn", row), replace(state, rows=row, **moved)
        if state.learned < state.rows:
            yield ("learned",), replace(state, learned=state.learned + 1)
        yield ("save",), self._save(state)
        if state.doing is None and state.learned > state.durable:
            yield ("submit",), replace(state, doing=(0, state.learned))
        if state.doing is not None:
            yield self._checkpoint(state)
        if state.crashes < self.crashes:
            yield ("crash",), replace(self.restarted(state), crashes=state.crashes + 1)

    def _save(self, state):
        # A row that waits, or that is accepted and not durable, must survive from now on.
        promised = state.promised | state.waiting | state.accepted
        return replace(state, file=(state.waiting, state.accepted), promised=promised)

    def _checkpoint(self, state):
        step, samples = state.doing
        kind = self.order[step]
        if kind == "labels":
            state = self._save(state)
        elif kind == "checkpoint":
            state = replace(state, checkpoint=samples)
        else:
            left = frozenset(row for row in state.accepted if row > samples and not self.forgets_all)
            state = replace(state, accepted=left, durable=samples)
        return (kind,), replace(state, doing=(step + 1, samples) if step + 1 < len(self.order) else None)

    def restarted(self, state):
        """Rows of the file wait again, unless the checkpoint contains them."""
        waiting, accepted = state.file
        kept = waiting | frozenset(row for row in accepted if row > state.checkpoint)
        done = state.checkpoint
        return replace(
            state,
            **{"waiting": kept, "accepted": frozenset(), "rows": done, "learned": done, "durable": done},
            doing=None,
        )

    def broken(self, state) -> str | None:
        if not state.rows >= state.learned >= state.durable:
            return f"accepted {state.rows}, learned {state.learned}, durable {state.durable}"
        after = self.restarted(state)
        if state.durable > state.checkpoint:
            return "rows are announced as durable that no checkpoint contains"
        if twice := [row for row in after.waiting if row <= state.checkpoint]:
            return f"the rows {twice} wait after a kill, and would be learned from twice"
        if gone := [row for row in state.promised if row > state.checkpoint and row not in after.waiting]:
            return f"the rows {gone} were saved, and are lost by a kill"
        return None
