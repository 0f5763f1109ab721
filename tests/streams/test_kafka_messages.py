"""The order of messages depends only on their content, not on the pieces they arrive in or where a run resumes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_pipes import quick

from norewind.streams.kafka.client import Address
from norewind.streams.kafka.messages import Message, MessageProgress, Rounds, key_text, message_line, message_place
from norewind.streams.position import init_position
from norewind.streams.stream import StreamError

contents = st.lists(st.lists(st.integers(0, 20), max_size=8), min_size=1, max_size=4)


def messages_of(times):
    return [Message(p, o, t, None, b"%d" % o) for p, part in enumerate(times) for o, t in enumerate(part)]


def in_order(rounds, pieces):
    """Return all messages, fetched in pieces of any size."""
    found = []
    for piece in pieces:
        for message in piece:
            rounds.add(message)
        while some := rounds.next_messages(1):
            found += some
            rounds.drop()
    assert rounds.is_over()
    return found


def interleaved(times, choices):
    """Interleave partitions in any order, keeping the order within each."""
    queues = [[m for m in messages_of(times) if m.partition == p] for p in range(len(times))]
    while any(queues):
        queue = [q for q in queues if q][choices.draw(st.integers(0, sum(map(bool, queues)) - 1))]
        yield [queue.pop(0) for _ in range(choices.draw(st.integers(1, len(queue))))]


def plain(times):
    """Return the order by definition: the oldest of the partitions' next messages, then the lowest partition."""
    queues, found = [[m for m in messages_of(times) if m.partition == p] for p in range(len(times))], []
    while any(queues):
        found.append(min((q for q in queues if q), key=lambda q: (q[0].time, q[0].partition)).pop(0))
    return found


@quick
@given(contents, st.data())
def test_the_order_follows_from_the_content(times, choices):
    ends = {p: len(part) for p, part in enumerate(times)}
    rounds = Rounds(dict.fromkeys(ends, 0), ends)
    assert in_order(rounds, interleaved(times, choices)) == plain(times)


@quick
@given(contents, st.data())
def test_a_position_inside_a_round_leads_to_the_rest(times, choices):
    ends, whole = {p: len(part) for p, part in enumerate(times)}, plain(times)
    rounds = Rounds(dict.fromkeys(ends, 0), ends)
    progress = MessageProgress(init_position("rows"), "t", rounds)
    for message in messages_of(times):
        rounds.add(message)
    cut = choices.draw(st.integers(1, len(whole))) if whole else 0
    for _ in range(cut):
        assert rounds.next_messages(1)
        rounds.drop()
        progress.mark()
    progress.note_returned(cut, None)
    if cut:
        saved = progress.position()["messages"]
        offsets, until = ({int(p): o for p, o in saved[name].items()} for name in ("offsets", "until"))
        rest = [m for m in messages_of(times) if m.offset >= offsets[m.partition]]
        assert in_order(Rounds(offsets, until), [rest]) == whole[cut:]


def test_a_silent_partition_delays_nothing():
    rounds = Rounds({0: 0, 1: 0}, {})
    rounds.add(Message(0, 0, 5, None, b"a"))
    assert not rounds.next_messages(1)  # no round has begun
    assert rounds.begin(rounds.reached)
    assert rounds.next_messages(1) == [Message(0, 0, 5, None, b"a")]


def test_gaps_in_the_offsets_are_not_messages():
    """Deleted messages and the marks of transactions leave gaps."""
    rounds = Rounds({0: 0, 1: 0}, {0: 9, 1: 4})
    rounds.add(Message(0, 3, 1, None, b"a"))
    assert not rounds.next_messages(1)
    rounds.reach(1, 4)
    assert rounds.next_messages(1)[0].offset == 3
    rounds.drop()
    assert not rounds.next_messages(1)
    assert not rounds.is_over()
    rounds.add(Message(0, 12, 0, None, b"of the next round"))
    assert rounds.is_over()


def test_messages_fetched_twice_count_once():
    rounds = Rounds({0: 0}, {0: 2})
    for offset in (0, 0, 1, 0, 1):
        rounds.add(Message(0, offset, 0, None, b"a"))
    assert [message.offset for message in rounds.next_messages(2)] == [0, 1]
    rounds.drop()
    rounds.drop()
    assert rounds.is_over()


@pytest.mark.parametrize("place", [(0, 0), (0, 5), (7, 0), (2**15 - 1, 2**48 - 1)])
def test_partition_and_offset_are_one_number(place):
    assert message_line(*place) < 0
    assert message_place(message_line(*place)) == place
    assert message_line(*place) >= -(2**63)


@pytest.mark.parametrize(
    "text", ["kafka://", "kafka:///0", "kafka://t/a", "kafka://t/0,,1", "kafka://t/-1", "kafka://t/99999"]
)
def test_addresses_that_name_nothing_are_rejected(text):
    with pytest.raises(StreamError, match="names no topic"):
        Address.of(text)


def test_keys_are_text():
    assert key_text("é".encode()) == "é"
