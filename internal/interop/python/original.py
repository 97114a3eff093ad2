"""harel's own MongoDB stores, in both collection namings and both twins."""

import asyncio
import functools

import pymongo
from motor import motor_asyncio

from harel.engine.aio import facade
from harel.engine.aio_store import AsyncMongoStore
from harel.engine.execution import Execution
from harel.engine.store import MongoStore


class Stores:
    """harel's stores on one server, over one client, one for each database."""

    def __init__(self, uri, naming, twin):
        self._naming, self._twin = naming, twin
        if twin == "sync":
            self._client = pymongo.MongoClient(uri)
        else:
            # on the loop that harel's own facade will use the stores from
            self._client = facade.run(motor_client, uri)
        if naming == "seed":
            write_as_seed()

    def store(self, database):
        twin = MongoStore if self._twin == "sync" else AsyncMongoStore
        store = twin(self._client, database)
        store.trace_max = 50
        if self._naming == "seed":
            store._exes, store._counters = store._db["executions"], store._db["counters"]
        return store


async def motor_client(uri):
    return motor_asyncio.AsyncIOMotorClient(uri)


def write_as_seed():
    """Makes snapshots of the seed's 18 fields."""
    later = {"created_at", "updated_at", "finished_at", "expires_at"}
    Execution.model_dump_json = functools.partialmethod(Execution.model_dump_json, exclude=later)


class Plain:
    """Either twin with methods that can be called plainly."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if asyncio.iscoroutinefunction(method):
            return functools.partial(facade.run, method)
        return method


class Held:
    """A store as a process sees it that dies before its relay runs: nothing is pending."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def pending_outbox(self):
        return []

    def pending_spawns(self):
        return []


class HeldAsync(Held):
    async def load(self, execution_id):  # a coroutine function: how harel tells the twins apart
        return await self._store.load(execution_id)

    async def pending_outbox(self):
        return []

    async def pending_spawns(self):
        return []
