"""Executions of every kind, written by harel's own engine through any store of its protocol."""

import inspect

from harel import DurableRunner, Event
from harel.engine.distributed import DistributedRunner

import machines
from original import Held, HeldAsync

START = 1746053379.0389447  # as time.time() gives it: finer than a microsecond

CONTEXT = {
    "order": "o-1",
    "items": [1, "two", 3.0, None, True],
    "text": "<b>&\u2028 \U0001f600 ä",
    "float": 1.0,
    "small": 1e-7,
    "large": 1e16,
    "long": 2**53 + 1,
    "dotted.key": {"$set": 1, "": 2, "a.b": {"$oid": "x"}},
    "empty": {},
}


class Clock:
    """A clock to move by hand."""

    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now


class NoTransport:
    """A transport that is down: a Start stays in the outbox."""

    def publish(self, group_id, event, priority=0):
        raise ConnectionError("the transport is down")


class Engine:
    """harel's runners over one store: with its relay, without it, and without a trace."""

    def __init__(self, store, clock):
        twin_async = inspect.iscoroutinefunction(store.load)
        held = HeldAsync(store) if twin_async else Held(store)
        model = "background" if twin_async else "inline"
        definitions = machines.definitions()
        self.clock = clock

        def runner(s, trace=True):
            return DurableRunner(s, definitions, clock=self.clock, trace=trace, execution=model)

        self.runner = runner(store)
        self.held = runner(held)
        self.untraced = runner(store, trace=False)
        self.sender = DistributedRunner(store, NoTransport(), definitions, clock=self.clock, execution=model)

    def write(self):
        """Writes every kind. What is relayed comes first: a relay delivers all that pends."""
        self._write_timed_out()
        self._write_relayed()
        self._write_pending()

    def _write_timed_out(self):
        self._create("Timed", "timed-late")
        self._create("Session", "session-expired")
        self.clock.now += 100
        assert self.runner.fire_due_timers() == 2  # Outer.Wait, which ends it, and then Outer
        self.clock.now += 2000
        assert self.runner.fire_due_timers() >= 1
        self.clock.now += 0.0000007

    def _write_relayed(self):
        self._create("Plain", "plain-running", priority=3)
        for _ in range(2):  # the second is dropped as a duplicate
            self._process("plain-running", "Go", {"n": 1.0, "at": "2026-01-02T03:04:05Z", "<k>": "&"}, id="ev-plain")
        self.untraced.create("Plain", {**CONTEXT, "huge": 2**70}, execution_id="plain-huge")
        self._create("Plain", "plain-done")
        self._process("plain-done", "Go")
        self._process("plain-done", "Go")
        self._create("Plain", "plain-suspended")
        self.runner.suspend("plain-suspended")
        self._create("Plain", "plain-cancelled")
        self.runner.terminate("plain-cancelled")
        self._create("Fork", "fork-running", priority=2)
        self._create("Fork", "fork-done")
        self._process("fork-done", "GoA")
        self._process("fork-done", "GoB")
        self._create("Waiting", "waiting-deferred")
        self._process("waiting-deferred", "Early", {"early": True})
        self._create("Boom", "boom-failed")
        self._process("boom-failed", "Go")
        self._create("Tidy", "tidy-done")
        self.runner.cancel("tidy-done", reason={"why": "tidy"})
        self._create("Remembers", "remembers")
        self._process("remembers", "Go")
        self._process("remembers", "Back")
        self._create("Caller", "caller-running")
        self._create("Batch", "batch-running")
        self._create("Timed", "timed-armed")
        self._create("Timed", "timed-hop")
        self._process("timed-hop", "Go")
        self._create("Session", "session-armed")

    def _write_pending(self):
        self._create("Fork", "fork-half")
        self.held.process("fork-half", Event(kind="GoA"))
        self.held.create("Fork", dict(CONTEXT), execution_id="fork-held")
        self.held.create("Caller", dict(CONTEXT), execution_id="caller-held")
        self.held.create("Tidy", dict(CONTEXT), execution_id="tidy-cancelling")
        self.held.cancel("tidy-cancelling", reason={"why": "tidy"})
        self.sender.create("Plain", dict(CONTEXT), execution_id="plain-queued")
        self.sender.create("Plain", dict(CONTEXT), execution_id="plain-bare", start_on_create=False)

    def carry_on(self):
        """Brings everything that `write` left open to its end."""
        self.runner.recover("Fork")
        for fork in ("fork-running", "fork-half", "fork-held"):
            self._process(fork, "GoA")
            self._process(fork, "GoB")
        self.runner.resume("plain-suspended")
        for plain in ("plain-suspended", "plain-running", "plain-queued"):
            self._process(plain, "Go")
        self.untraced.process("plain-huge", Event(kind="Go"))  # a trace step cannot hold such integers
        self._process("waiting-deferred", "Go")
        self.runner.redrive("boom-failed", "Ready")
        self._process("remembers", "Go")
        for child in ("caller-running:Run:0", "caller-held:Run:0", "batch-running:Each:0:0"):
            self._process(child, "Go")
        self._process("timed-hop", "Back")
        self.clock.now += 31
        self.runner.fire_due_timers()
        self.clock.now += 2000
        self.runner.fire_due_timers()

    def start_sessions(self, times):
        for n in range(times):  # at times with all sorts of fractions
            self._create("Session", "session-%d" % n)
            self.clock.now += 0.0123457

    def expire_sessions(self):
        self.clock.now += 2000
        self.runner.fire_due_timers()

    def _create(self, definition, execution_id, priority=0):
        self.runner.create(definition, dict(CONTEXT), execution_id=execution_id, priority=priority)

    def _process(self, execution_id, kind, data=None, **fields):
        self.runner.process(execution_id, Event(kind=kind, data=data or {}, **fields))
