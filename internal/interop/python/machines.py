"""Machines that between them bring an execution into every state that harel has."""

import functools

from harel import definition_from_dsl

SOURCE = """
event Go {}
event Back {}
event GoA {}
event GoB {}
event Early {}

machine Plain {
  initial Cart
  state Cart { on enter note }
  state Paid { on enter note }
  final Shipped success {}
  from Cart to Paid on Go
  from Paid to Shipped on Go
}

machine Timed {
  ttl 3600
  initial Outer
  state Outer {
    timeout 90
    initial Wait
    state Wait { timeout 30 }
    state Hop {}
    from Wait to Hop on Go
    from Hop to Wait on Back
  }
  final Late late {}
  final Expiry expired {}
  from Outer to Late on Timeout
  from Outer to Expiry on Expired
}

machine Session {
  ttl 1800
  initial Active
  state Active {}
  final Closed expired {}
  from Active to Active on Go
  from Active to Closed on Expired
}

machine Fork {
  initial Both
  orthogonal Both {
    with { order: order }
    state A {
      carry order
      initial A1
      state A1 { on enter note }
      final A2 success {}
      from A1 to A2 on GoA
    }
    state B {
      timeout 60
      initial B1
      state B1 { on enter note }
      final B2 success {}
      from B1 to B2 on GoB
    }
  }
  final Done success { on enter note }
  from Both to Done
}

machine Waiting {
  defer Early
  initial First
  state First {}
  state Second {}
  final Done success {}
  from First to Second on Go
  from Second to Done on Early
}

machine Boom {
  initial Ready
  state Ready {}
  state Broken { on enter explode }
  from Ready to Broken on Go
}

machine Tidy {
  initial Busy
  state Busy { timeout 600 }
  final Tidied cleaned { on enter note }
  from Busy to Tidied on Cancel
}

machine Remembers {
  initial Work
  state Work {
    initial One
    state One {}
    state Two {}
    from One to Two on Go
  }
  state Pause {}
  from Work to Pause on Back
  from Pause to Work on Go
}

machine Caller {
  initial Run
  state Run {
    invoke { carry order  initial Look  state Look {}  final Won success {}  from Look to Won on Go }
    with { order: order }
  }
  final Good success {}
  from Run to Good on Returned where outcome == "success"
}

machine Batch {
  initial Each
  state Each {
    invoke for item in items { initial Look  state Look {}  final Won success {}  from Look to Won on Go }
    with { slice: item }
  }
  final All success {}
  final Some failed {}
  from Each join all to All else to Some
}
"""


def note(stm, event):
    stm.execution_ctx.setdefault("seen", []).append(event.kind if event is not None else None)


def explode(stm, event):
    raise ValueError("the machine is <broken> & \u2028 done")




@functools.cache
def definitions():
    """Parses each machine by itself: the parser's cost grows faster than its text."""
    events, *texts = SOURCE.split("machine ")
    actions = {"note": note, "explode": explode}
    built = [definition_from_dsl(events + "machine " + text, actions=actions) for text in texts]
    return {definition.id: definition for definition in built}
