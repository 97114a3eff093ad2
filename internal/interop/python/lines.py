"""JSON lines: one request {"database", "op", "args"} a line, one reply a line.

A reply is {"result": ...} or {"error": {"type", "message", ...}}. Snapshots and
events travel as their JSON text, so that nothing on the way reformats them.
"""

import json
import subprocess
import sys
import traceback

from harel.engine.store import StoreConflict


def serve(operate):
    """Answers requests from stdin until it ends, by operate(database, op, args)."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"result": operate(request["database"], request["op"], request["args"] or {})}
        except StoreConflict as e:
            reply = {"error": {"type": "conflict", "message": str(e), "expected": e.expected, "found": e.found}}
        except Exception as e:  # the other side decides what to make of it
            traceback.print_exc()
            reply = {"error": {"type": type(e).__name__, "message": str(e)}}
        print(json.dumps(reply), flush=True)


class Peer:
    """The other end: a command that serves JSON lines. One call at a time."""

    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, op, **args):
        self._process.stdin.write(json.dumps({"op": op, "args": args}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("%s: the bridge ended, exit %s" % (op, self._process.wait()))
        reply = json.loads(line)
        if "error" not in reply:
            return reply["result"]
        error = reply["error"]
        if error["type"] == "conflict":
            raise StoreConflict(json.loads(args["data"])["id"], error["expected"], error["found"])
        raise RuntimeError("%s: %s: %s" % (op, error["type"], error["message"]))

    def close(self):
        self._process.stdin.close()
        if self._process.wait(timeout=20) != 0:
            raise RuntimeError("the bridge exited with %d" % self._process.returncode)
