"""mongostore as an ExecutionStore of harel's, behind the Go command internal/interop/bridge."""

import asyncio

from harel.engine.execution import Execution, ExecutionPage, ExecutionSummary
from harel.engine.store import OutboxEntry, SpawnEntry
from harel.spec.states import Event

from lines import Peer


def parse(data):
    return None if data is None else Execution.model_validate_json(data)


class BridgeStore:
    """harel's ExecutionStore protocol, each method one request."""

    def __init__(self, command):
        self._peer = Peer(command)

    def load(self, execution_id):
        return parse(self._peer.call("load", id=execution_id))

    def list_executions(self, *, status=None, definition_id=None, roots_only=False, limit=100, cursor=None):
        page = self._peer.call(
            "list",
            status=None if status is None else [s.value for s in status],
            definition_id=definition_id,
            roots_only=roots_only,
            limit=limit,
            cursor=cursor,
        )
        items = [ExecutionSummary.model_validate(row) for row in page["items"]]
        return ExecutionPage(items=items, next_cursor=page["next"])

    def save(self, exe):
        self.commit(exe, [])

    def commit(self, exe, emits, processed_event_id=None, timers=(), spawns=(), trace=None, step=None):
        done = self._peer.call(
            "commit",
            data=exe.model_dump_json(),
            emits=[[target, event.model_dump_json()] for target, event in emits],
            processed=processed_event_id,
            timers=[{"action": op.action, "path": op.path, "fire_at": op.fire_at} for op in timers],
            spawns=[list(spawn) for spawn in spawns],
            trace=trace,
        )
        exe.version = done["version"]
        return done["seqs"]

    def is_processed(self, execution_id, event_id):
        return self._peer.call("is_processed", id=execution_id, event_id=event_id)

    def read_trace(self, execution_id):
        return self._peer.call("read_trace", id=execution_id)

    def append_trace(self, execution_id, entry):
        self._peer.call("append_trace", id=execution_id, step=entry)

    def pending_outbox(self):
        rows = self._peer.call("pending_outbox")
        return [OutboxEntry(r["seq"], r["target_id"], Event.model_validate_json(r["event"])) for r in rows]

    def ack_outbox(self, seq):
        self._peer.call("ack_outbox", seq=seq)

    def pending_spawns(self):
        return [SpawnEntry(**row) for row in self._peer.call("pending_spawns")]

    def ack_spawn(self, seq):
        self._peer.call("ack_spawn", seq=seq)

    def due_timers(self, now):
        return [tuple(row) for row in self._peer.call("due_timers", now=now)]

    def delete_timer(self, execution_id, path, fire_at):
        self._peer.call("delete_timer", id=execution_id, path=path, fire_at=fire_at)

    def ids_with_prefix(self, prefix):
        return self._peer.call("ids_with_prefix", prefix=prefix)

    def purge(self, execution_id, expected_version):
        return self._peer.call("purge", id=execution_id, version=expected_version)

    def close(self):
        self._peer.close()


class AsyncBridgeStore:
    """harel's AsyncExecutionStore protocol: the same methods, awaited off the loop."""

    def __init__(self, store):
        self._store = store
        self._turn = asyncio.Lock()  # the bridge answers one request at a time

    async def _call(self, name, *args, **kwargs):
        async with self._turn:
            return await asyncio.to_thread(getattr(self._store, name), *args, **kwargs)

    async def load_for_event(self, execution_id, event_id):
        async with self._turn:
            found = await asyncio.to_thread(self._store._peer.call, "load_for_event", id=execution_id, event_id=event_id)
        return parse(found["data"]), found["seen"]


def _awaited(name):
    async def method(self, *args, **kwargs):
        return await self._call(name, *args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    "load list_executions save commit is_processed read_trace append_trace pending_outbox ack_outbox "
    "pending_spawns ack_spawn due_timers delete_timer ids_with_prefix purge close"
).split():
    setattr(AsyncBridgeStore, _name, _awaited(_name))
