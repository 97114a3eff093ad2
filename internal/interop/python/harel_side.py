"""harel's side of the interop tests: its MongoDB stores and its engine, by JSON lines.

    harel_side.py URI seed|harel sync|async
"""

import sys

from harel.engine.execution import Execution, Status
from harel.engine.store import StoreConflict, TimerOp
from harel.spec.states import Event

from kinds import Clock, Engine
from lines import serve
from original import Plain, Stores


class Side:
    """The operations on one database. Arguments and results are those of harel's
    store, as JSON."""

    def __init__(self, store):
        self._store = Plain(store)
        self._engine = Engine(store, Clock())

    def load(self, id):
        exe = self._store.load(id)
        return None if exe is None else exe.model_dump_json()

    def load_for_event(self, id, event_id):
        if hasattr(self._store, "load_for_event"):
            exe, seen = self._store.load_for_event(id, event_id)
        else:  # as a worker does it then
            exe = self._store.load(id)
            seen = exe is not None and self._store.is_processed(id, event_id)
        return {"data": None if exe is None else exe.model_dump_json(), "seen": seen}

    def commit(self, data, emits=(), processed=None, timers=(), spawns=(), trace=None):
        exe = Execution.model_validate_json(data)
        seqs = self._store.commit(
            exe,
            [(target, Event.model_validate_json(event)) for target, event in emits],
            processed_event_id=processed,
            timers=tuple(TimerOp(**op) for op in timers),
            spawns=tuple((child, path, context) for child, path, context in spawns),
            trace=trace,
        )
        return {"version": exe.version, "seqs": seqs}

    def is_processed(self, id, event_id):
        return self._store.is_processed(id, event_id)

    def list(self, status=None, definition_id=None, roots_only=False, limit=100, cursor=None):
        page = self._store.list_executions(
            status=None if status is None else [Status(s) for s in status],
            definition_id=definition_id,
            roots_only=roots_only,
            limit=limit,
            cursor=cursor,
        )
        return {"items": [row.model_dump(mode="json") for row in page.items], "next": page.next_cursor}

    def read_trace(self, id):
        return self._store.read_trace(id)

    def append_trace(self, id, step):
        self._store.append_trace(id, step)

    def pending_outbox(self):
        entries = self._store.pending_outbox()
        return [{"seq": e.seq, "target_id": e.target_id, "event": e.event.model_dump_json()} for e in entries]

    def ack_outbox(self, seq):
        self._store.ack_outbox(seq)

    def pending_spawns(self):
        return [vars(entry) for entry in self._store.pending_spawns()]

    def ack_spawn(self, seq):
        self._store.ack_spawn(seq)

    def due_timers(self, now):
        return self._store.due_timers(now)

    def delete_timer(self, id, path, fire_at):
        self._store.delete_timer(id, path, fire_at)

    def ids_with_prefix(self, prefix):
        return self._store.ids_with_prefix(prefix)

    def purge(self, id, version):
        return self._store.purge(id, version)

    def add(self, id, times):
        """Commits one event after the other, again after each conflict; tells how many it met."""
        conflicts, done = 0, 0
        while done < times:
            name = "harel-%d" % done
            exe = self._store.load(id)
            exe.context[name] = 1
            try:
                self._store.commit(exe, [(None, Event(id=name, kind="Harel"))], processed_event_id=name)
                done += 1
            except StoreConflict:
                conflicts += 1
        return conflicts

    def write_kinds(self):
        self._engine.write()

    def carry_on(self):
        self._engine.carry_on()

    def start_sessions(self, times):
        self._engine.start_sessions(times)

    def expire_sessions(self):
        self._engine.expire_sessions()

    def recover(self, definition):
        self._engine.runner.recover(definition)


def main():
    stores = Stores(*sys.argv[1:])
    sides = {}

    def operate(database, op, args):
        if database not in sides:
            sides[database] = Side(stores.store(database))
        return getattr(sides[database], op)(**args)

    serve(operate)


if __name__ == "__main__":
    main()
