"""One symbol of the stream: the contexts it is seen in, its bits one after another, and every symbol's probability."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.learners.counting import contexts, matching, nodes, slots, tree
from norewind.learners.counting.plan import Plan, with_table, without_table

RUN_MULTIPLIERS = contexts.multipliers([tuple(range(matching.LEAST))])[0, : contexts.RECENT]
_LAST_SAMPLE = np.iinfo(np.int32).max


class CountsRun(NamedTuple):
    """Everything that counts know, as one pytree whose size never changes."""

    table: jax.Array
    memory: nodes.Memory
    past: contexts.Past
    matches: matching.Matches
    samples: jax.Array


def planned(symbols: int, members: int, megabytes: float, classes: np.ndarray | None) -> Plan:
    """A plan for a run of at most this many megabytes: the table gets what the rest leaves."""
    plan = without_table(symbols, members, megabytes * 1e6, classes)
    rest = jax.eval_shape(lambda: fresh(plan)._replace(table=None))
    return with_table(plan, megabytes * 1e6 - sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(rest)))


def fresh(plan: Plan) -> CountsRun:
    """Nothing has been seen."""
    table = jnp.zeros((plan.rows, slots.WIDTH), jnp.uint32)
    memory, past, samples = _fresh_but_for_tables(plan)
    return CountsRun(table, memory, past, matching.no_matches(plan), samples)


def _fresh_but_for_tables(plan: Plan) -> tuple[nodes.Memory, contexts.Past, jax.Array]:
    return nodes.fresh_memory(plan), contexts.empty_past(), jnp.zeros((), jnp.int32)


def moved(plan: Plan, run: CountsRun, x: jax.Array) -> tuple[CountsRun, nodes.Moment]:
    """The run that has seen x, and the moment before the next symbol. What has been learned stays as it is."""
    position = run.matches.position + 1
    kind = jnp.int32(contexts.OTHER) if plan.classes is None else jnp.asarray(plan.classes)[x]
    past = contexts.seen(run.past, x, kind, position)
    recent = (past.recent + 1).astype(jnp.uint32)
    matches = matching.followed(run.matches, x, contexts.scrambled((recent * RUN_MULTIPLIERS).sum(dtype=jnp.uint32)))
    place, there, column = contexts.place_above(past, position)
    above = jnp.where(there, matching.at(matches, place) + 1, 0)
    expected, opinion = matching.opinion(matches)
    features = contexts.features(past, above, column, opinion)
    hashes = (plan.multipliers[:, :-1] * features).sum(-1, dtype=jnp.uint32) + plan.multipliers[:, -1]
    moment = nodes.Moment(hashes, expected, matches.length, past.recent)
    return run._replace(past=past, matches=matches), moment


def learned(plan: Plan, run: CountsRun, moment: nodes.Moment, target, logits) -> tuple[CountsRun, jax.Array]:
    """Predict the target bit by bit and learn from every bit; the loss in nats. `logits` are the members', by level."""

    def choose(level, node, one, loss):
        bit = (target >> (plan.depth - level - 1)) & 1
        return bit, loss - jnp.log(jnp.where(bit == 1, one, 1 - one))

    def logits_at(level, node):
        return jax.lax.dynamic_index_in_dim(logits, level, 1, keepdims=False)

    starts = [(target + (1 << plan.depth)) >> (plan.depth - group.start) for group in tree.groups_of(plan.depth)]
    run, _, loss = walked(plan, run, moment, logits_at, choose, jnp.zeros((), jnp.float32), starts)
    return run, loss


def walked(plan: Plan, run: CountsRun, moment: nodes.Moment, logits_at, choose, state, starts=None):
    """Go down a symbol's bits, and learn from each: `(run, symbol, state)`.

    `choose(level, node, one, state) -> (bit, state)` gives every bit, of which `one` is the
    probability that it is a one. `starts` are the first nodes of each group of bits, if
    the symbol is known; then all its rows of the table are read at once, which is faster.
    """
    groups, table, node, memory = tree.groups_of(plan.depth), run.table, jnp.ones((), jnp.int32), run.memory
    # All are read before any is written: what the first bits write cannot change what the last bits find.
    known = starts and [slots.rows_of(table, *nodes.rows_for(plan, moment.hashes, start)) for start in starts]
    written = []
    for number, group in enumerate(groups):
        places, rows = known[number] if known else slots.rows_of(table, *nodes.rows_for(plan, moment.hashes, node))

        # Only the rows go into the inner loop: the table stays outside, where XLA updates it in place.
        def one_bit(level, loop, first=group.start):
            memory, node, state, rows = loop
            inner = (node & ((1 << (level - first)) - 1)) + (1 << (level - first))
            found = jax.lax.dynamic_slice_in_dim(rows, inner, 1, 1)[:, 0]
            at_node = nodes.predicted(plan, memory, moment, level, node, found, logits_at(level, node))
            bit, state = choose(level, node, nodes.one(at_node), state)
            memory, new = nodes.learned(memory, at_node, bit.astype(jnp.float32), run.samples)
            rows = jax.lax.dynamic_update_slice_in_dim(rows, new[:, None], inner, 1)
            return memory, 2 * node + bit, state, rows

        memory, node, state, rows = jax.lax.fori_loop(group.start, group.stop, one_bit, (memory, node, state, rows))
        written.append((places, rows))
    # The barrier puts every read before the first write, or XLA would copy the table.
    table, written = jax.lax.optimization_barrier((table, written))
    for places, rows in written:
        table = table.at[places].set(rows, unique_indices=True, mode="promise_in_bounds")
    samples = jnp.minimum(run.samples, _LAST_SAMPLE - 1) + 1
    return run._replace(table=table, memory=memory, samples=samples), node - (1 << plan.depth), state


def log_probabilities(plan: Plan, run: CountsRun, moment: nodes.Moment, members: jax.Array) -> jax.Array:
    """The log-probability of every symbol to come next; `members` are the members' log-probabilities (K, symbols)."""
    node = np.arange(1, 1 << plan.depth)
    level = np.array([number.bit_length() - 1 for number in node.tolist()])
    first = np.concatenate([[group.start] * len(group) for group in tree.groups_of(plan.depth)])[level]
    start, inner = node >> (level - first), (node & ((1 << (level - first)) - 1)) + (1 << (level - first))
    starts, which = np.unique(start, return_inverse=True)
    places, checks = jax.vmap(lambda one: nodes.rows_for(plan, moment.hashes, one))(jnp.asarray(starts, jnp.int32))
    found = slots.rows_of(run.table, places, checks)[1][which, :, inner]
    logits = jnp.concatenate(tree.level_logits(members, plan.depth), -1).T

    def one(level, node, found, logits):
        return nodes.one(nodes.predicted(plan, run.memory, moment, level, node, found, logits))

    numbers = jnp.asarray(level, jnp.int32), jnp.asarray(node, jnp.int32)
    return tree.leaves(jax.vmap(one)(*numbers, found, logits), plan.symbols)
