"""Runs harel's contracts for foreign stores on mongostore behind the bridge.

    contracts.py BRIDGE...

Prints one JSON object: what failed in each contract, null if nothing did.
"""

import asyncio
import json
import sys
import traceback

from harel import testing
from harel.engine.aio_store import AsyncExecutionStore
from harel.engine.store import ExecutionStore
from harel.testing import purge

from bridge_store import AsyncBridgeStore, BridgeStore


def is_a(store, protocol):
    assert isinstance(store, protocol), "%r lacks methods of %r" % (store, protocol)


def contracts(store):
    twin = AsyncBridgeStore(store)
    return {
        "protocol": lambda: is_a(store, ExecutionStore),
        "listing": lambda: testing.assert_listing_contract(store, ordered=True, ns="s-"),
        "outbox": lambda: testing.assert_outbox_contract(store, ns="s-"),
        "purge": lambda: testing.assert_purge_contract(store, ns="s-"),
        "ids_with_prefix": lambda: purge.assert_ids_with_prefix_contract(store, ns="p-"),
        "async protocol": lambda: is_a(twin, AsyncExecutionStore),
        "async listing": lambda: asyncio.run(testing.assert_async_listing_contract(twin, ordered=True, ns="a-")),
        "async outbox": lambda: asyncio.run(testing.assert_async_outbox_contract(twin, ns="a-")),
        "async purge": lambda: asyncio.run(testing.assert_async_purge_contract(twin, ns="a-")),
    }


def main():
    store = BridgeStore(sys.argv[1:])
    results = {}
    for name, check in contracts(store).items():
        try:
            check()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    store.close()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
