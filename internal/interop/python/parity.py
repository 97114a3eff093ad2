"""Runs harel's engine on its own store and on mongostore, and compares all that they hold.

    parity.py URI DATABASE BRIDGE...

harel's store gets the database, mongostore what the bridge is told. Exits with the
first difference, else prints how many executions ended and whose ttl ran out.
"""

import json
import sys

from harel.spec import states

from bridge_store import BridgeStore
from kinds import Clock, Engine
from original import Stores


class Ids:
    """Stands in for the uuid module: the same ids in the same order, run after run."""

    def __init__(self):
        self._count = 0

    def uuid4(self):
        self._count += 1
        self.hex = "%032x" % self._count
        return self


def observe(store):
    """All that a store tells of what it holds."""
    rows = store.list_executions(limit=1000).items
    seen = {"rows": [row.model_dump(mode="json") for row in rows]}
    for row in rows:
        seen["load " + row.id] = store.load(row.id).model_dump(mode="json")
        seen["trace " + row.id] = store.read_trace(row.id)
    seen["outbox"] = [(e.seq, e.target_id, e.event.model_dump(mode="json")) for e in store.pending_outbox()]
    seen["spawns"] = [vars(e) for e in store.pending_spawns()]
    seen["timers"] = sorted(store.due_timers(1e10))
    return seen


def run_engine(store):
    """Every kind of execution: as written, as ended, and with one family purged."""
    states.uuid = Ids()
    engine = Engine(store, Clock())
    engine.write()
    written = observe(store)
    engine.carry_on()
    ended = observe(store)
    # what another execution has pending for it goes with it
    store.commit(store.load("plain-bare"), [("fork-done", states.Event(kind="Late")), (None, states.Event(kind="Stays"))])
    assert engine.runner.purge("fork-done")
    return {"written": written, "ended": ended, "purged": observe(store)}


def main():
    uri, database, *bridge = sys.argv[1:]
    bridged = BridgeStore(bridge)
    expected, found = run_engine(Stores(uri, "harel", "sync").store(database)), run_engine(bridged)
    bridged.close()
    for stage, things in expected.items():
        for what, value in things.items():
            # as JSON text, in which 1, 1.0 and true differ, and the order of keys counts
            theirs, ours = json.dumps(value), json.dumps(found[stage].get(what))
            if theirs != ours:
                sys.exit("%s, %s: harel's store has\n%s\nmongostore has\n%s" % (stage, what, theirs, ours))
    ended = found["ended"]["rows"]
    expired = [row["id"] for row in ended if row["definition_id"] == "Session" and row["outcome"] == "expired"]
    print(json.dumps({"executions": len(ended), "expired": expired}))


if __name__ == "__main__":
    main()
