"""A cluster for tests: librdkafka's mock broker behind a proxy that adds features the mock lacks.

The mock accepts the offsets of a transaction without storing them, shows readers of committed
messages everything, and does not fence producers. The proxy, on the loopback interface, stores
the offsets until their transaction is committed, then commits them, and rejects a fenced
producer. `committed` reads the log itself, with its markers, and
returns what a real broker would show.
"""

import contextlib
import itertools
import json
import logging
import socket
import struct
import threading

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

HOST = "127.0.0.1"
FETCH, INIT_PRODUCER_ID, END_TRANSACTION, TRANSACTION_OFFSETS = 1, 22, 26, 28
FENCED = 47
quiet = logging.getLogger("tests.kafka")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


class Buffer:
    """Reads numbers and strings of Kafka's protocol in order."""

    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def take(self, form):
        value = struct.unpack_from(">" + form, self.data, self.at)[0]
        self.at += struct.calcsize(">" + form)
        return value

    def bytes(self, length):
        self.at += max(0, length)
        return None if length < 0 else self.data[self.at - length : self.at]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take("B")
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def zigzag(self):
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def text(self):
        return self.bytes(self.take("h"))

    def compact(self):
        return self.bytes(self.varint() - 1)

    def skip_tags(self):
        assert self.varint() == 0


class Cluster:
    """A mock cluster; `brokers` is its address."""

    def __init__(self):
        self.host = Producer({"bootstrap.servers": "x", "test.mock.num.brokers": 1}, logger=quiet)
        self.mock = next(iter(self.host.list_topics(timeout=10).brokers.values())).port
        self.direct = f"{HOST}:{self.mock}"
        self.offsets, self.producers = {}, {}
        self.is_up = True
        self.connections = []
        self.proxy = socket.create_server((HOST, 0))
        self.port = self.proxy.getsockname()[1]
        self.brokers = f"{HOST}:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()
        self.sender = Producer({"bootstrap.servers": self.direct, "linger.ms": 50}, logger=quiet)

    def close(self):
        self.disconnect()
        self.proxy.close()

    # Topics

    def create(self, *topics):
        """Create a topic. Topics of the mock have four partitions, and are created by the first message."""
        for topic in topics:
            self.host.list_topics(topic, timeout=10)

    def send(self, topic, messages):
        """Send messages, given as (partition, time, key, value)."""
        for partition, moment, key, value in messages:
            value = json.dumps(value).encode() if isinstance(value, dict) else value
            self.sender.produce(topic, value, key=key, partition=partition, timestamp=moment)
            self.sender.poll(0)
        assert self.sender.flush(20) == 0

    def group(self, name, topic, partitions=4):
        """Return the offsets that a group has committed."""
        consumer = Consumer({"bootstrap.servers": self.direct, "group.id": name}, logger=quiet)
        places = consumer.committed([TopicPartition(topic, partition) for partition in range(partitions)], 10)
        consumer.close()
        return [place.offset for place in places]

    def committed(self, topic):
        """Return the committed messages by partition, as a reader with read_committed would see them."""
        return {partition: _visible(self.log(topic, partition)) for partition in range(4)}

    def log(self, topic, partition):
        """Return the batches of a partition: first offset, producer, attributes, records as (offset, key, value)."""
        batches, offset = [], 0
        with socket.create_connection((HOST, self.mock)) as connection:
            while batch := _fetch(connection, topic, partition, offset):
                batches.append(batch)
                offset = batch[0] + batch[3]
        return batches

    # The proxy

    def disconnect(self):
        self.is_up = False
        for connection in self.connections:
            for end in connection:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # also wakes up threads that wait for it
        self.connections.clear()

    def come_back(self):
        self.is_up = True

    def accept(self):
        while True:
            try:
                client, _ = self.proxy.accept()
            except OSError:
                return
            if not self.is_up:
                client.close()
                continue
            mock = socket.create_connection((HOST, self.mock))
            self.connections.append((client, mock))
            asked = {}
            for work in (self.forward, self.back):
                threading.Thread(target=_until_closed, args=(work, client, mock, asked), daemon=True).start()

    def forward(self, client, mock, asked):
        """Forward requests from the client to the mock."""
        while frame := _frame(client):
            request = Buffer(frame)
            kind, version, number = request.take("h"), request.take("h"), request.take("i")
            request.text()
            if kind == TRANSACTION_OFFSETS:
                self.keep(request)
            elif kind == INIT_PRODUCER_ID:
                request.skip_tags()
                asked[number] = request.compact()
                self.offsets.pop(asked[number], None)
            elif kind == END_TRANSACTION and version <= 1:
                name, producer, _, commits = request.text(), request.take("q"), request.take("h"), request.take("b")
                if self.producers.get(name) != producer:
                    client.sendall(struct.pack(">iiih", 10, number, 0, FENCED))
                    continue
                pending = self.offsets.pop(name, None)
                if commits and pending:
                    self.settle(*pending)
            mock.sendall(struct.pack(">i", len(frame)) + frame)

    def keep(self, request):
        request.skip_tags()
        name, group = request.compact(), request.compact().decode()
        if self.producers.get(name) != request.take("q"):
            return  # of a fenced producer; it is told so at the end of its transaction
        request.take("h"), request.take("i")
        request.compact(), request.compact()
        places = []
        for _ in range(request.varint() - 1):
            topic = request.compact().decode()
            for _ in range(request.varint() - 1):
                partition, offset, _, note = request.take("i"), request.take("q"), request.take("i"), request.compact()
                places.append(TopicPartition(topic, partition, offset, note.decode().rstrip("\0")))
                request.skip_tags()
            request.skip_tags()
        self.offsets[name] = group, places

    def settle(self, group, places):
        options = {"bootstrap.servers": self.direct, "group.id": group, "enable.auto.commit": False}
        consumer = Consumer(options, logger=quiet)
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def back(self, client, mock, asked):
        """Forward responses to the client. The address of the mock is replaced by that of the proxy."""
        there, here = (HOST.encode() + struct.pack(">i", port) for port in (self.mock, self.port))
        while frame := _frame(mock):
            number = struct.unpack_from(">i", frame)[0]
            if name := asked.pop(number, None):
                error, producer = struct.unpack_from(">hq", frame, 9)  # after the tags of the header and the throttle
                if not error:
                    self.producers[name] = producer
            frame = frame.replace(there, here)
            client.sendall(struct.pack(">i", len(frame)) + frame)


def _until_closed(work, client, mock, asked):
    try:
        work(client, mock, asked)
    except OSError:
        pass
    finally:
        client.close()
        mock.close()


def _frame(connection):
    length = _exactly(connection, 4)
    return length and _exactly(connection, struct.unpack(">i", length)[0])


def _exactly(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            return b""
        data += part
    return data


def _fetch(connection, topic, partition, offset):
    """Return the batch at this offset; None at the end."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">iiiibi", -1, 0, 1, 1 << 24, 0, 1) + name
    body += struct.pack(">iiqi", 1, partition, offset, 1 << 24)
    request = struct.pack(">hhih", FETCH, 4, 7, 1) + b"t" + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    answer = Buffer(_frame(connection), 8)
    assert answer.take("i") == 1
    answer.text()
    assert (answer.take("i"), answer.take("i"), answer.take("h")) == (1, partition, 0)
    answer.take("q"), answer.take("q"), answer.take("i")
    data = answer.bytes(answer.take("i"))
    return _batch(data) if data else None


def _batch(data):
    batch = Buffer(data)
    first = batch.take("q")
    batch.at += 4 + 4 + 1 + 4
    attributes, last, producer = batch.take("h"), batch.take("i"), None
    batch.at += 16
    producer = batch.take("q")
    batch.at += 2 + 4
    assert attributes & 7 == 0, "compressed"
    records = []
    for _ in range(batch.take("i")):
        length = batch.zigzag()
        end = batch.at + length
        batch.take("b"), batch.zigzag()
        offset = first + batch.zigzag()
        records.append((offset, batch.bytes(batch.zigzag()), batch.bytes(batch.zigzag())))
        batch.at = end
    return first, producer, attributes, last + 1, records


def _visible(batches):
    """Return the committed messages: those of transactions whose marker is a commit. Without a marker, one is open."""
    shown = []
    for place, (_, producer, attributes, _, records) in enumerate(batches):
        if attributes & 32:
            continue
        if attributes & 16:
            markers = (b for b in itertools.islice(batches, place, None) if b[2] & 32 and b[1] == producer)
            marker = next(markers, None)
            if marker is None or marker[4][0][1][2:] != b"\0\1":
                continue
        shown += [(key, json.loads(value)) for _, key, value in records]
    return shown


def rows(number, seed=0):
    generator = np.random.default_rng(seed)
    levels = (generator.normal(size=number).cumsum() % 10).round(2).tolist()
    for i, level in enumerate(levels):
        # Partitions with different rates, and times that are slightly out of order.
        partition = int(generator.choice(4, p=[0.5, 0.3, 0.2, 0]))
        yield (
            partition,
            1_700_000_000_000 + 100 * i + int(generator.integers(300)),
            b"s%d" % partition,
            {"level": level},
        )
