// Package mongostore keeps the state of workflows, state machines, sagas and agents
// in MongoDB: one document an execution, one atomic update a commit.
//
// A program that runs such things loads an execution when an event comes for it,
// decides, and commits. The new state, the events it emits, the children it spawns,
// the timers it arms, the mark that the event was handled and a step of its timeline
// are then all there, or none of them. A bare standalone mongod is enough for that:
// no transaction, no second database, no server beside MongoDB.
//
// # Model
//
// An execution is any struct of yours that embeds [Header] by value:
//
//	type Order struct {
//		mongostore.Header
//		Total int `json:"total"`
//	}
//
// A *Order is then an [Execution]. Its document holds the struct as JSON text, called
// the snapshot, and beside it what the store needs: the version, the header's fields
// for listings, and what the execution owes to others. Load fills the Header from the
// document's own fields, so a codec may leave it out of the snapshot.
//
// A [Store] is made by [New] on a client that you have, or by [Connect]. It is safe
// for concurrent use. An execution's value is not: one goroutine at a time.
// [Store.Setup] makes the indexes; call it once when the program starts.
//
// Two things compile and are wrong. Decoding a request of a client into a type that
// embeds Header lets that client set the status and the version: decode into a type
// of its own. And a smaller struct that is loaded and committed drops the fields that
// it lacks: see Limits.
//
// See the package's Example.
//
// # Committing
//
// [Store.Commit] writes the value and its [Changes] if the stored version is still the
// one in the value's Header, and moves that version. A value with Version 0 is new,
// and its commit is an insert. What can never be stored is refused before anything is
// sent, with the field that is wrong ([ErrInvalid]). After any error the Version in
// memory is what it was.
//
// One round trip does it. A commit with emits or spawns waits once more, for their
// numbers. See the example of Store.Commit.
//
// # Conflicts and retries
//
// [ErrConflict] says that somebody else committed first: load again, decide again.
// [Store.Update] is that loop, and what most callers want. Give it the event's id, and
// an event that was handled before is skipped; so a queue may deliver twice.
//
// The function that Update runs may run more than once, each time on a value that was
// loaded anew. It must set everything from what it finds there, and change nothing
// outside that counts. A pointer into the value, taken before, points to what was.
//
// Exclusive work on one execution, such as a long call to another system, needs no
// lock: commit who owns it and until when, then do it. The version decides between two
// who try. See the examples of Store.Update and ExclusiveWork.
//
// # Unknown outcomes
//
// A reply can get lost after the server has written. The store then asks the server,
// for [Config].OutcomeTimeout even when ctx has ended, and tells the truth: landed,
// conflict, or, if it cannot know, [ErrUnknownOutcome]. A commit of yours is never
// reported as somebody else's.
//
// After ErrUnknownOutcome call Commit again with the same value and the same changes:
// it goes on from there and lands at most once. With other contents it says so, if the
// first ones have landed: a [ConflictError] with Own set. Load then, to see what is
// stored. Commit by itself is always safe to repeat. See the example UnknownOutcome.
//
// # Events, spawns and timers
//
// What a commit emits, spawns and arms waits in the document until it was delivered. A
// [Relay] does that, see below.
//
// Three sweeps find it, oldest first, for a relay of yours: [Store.PendingOutbox],
// [Store.PendingSpawns] and [Store.DueTimers]. They cost what they return, not what is
// stored. Deliver first, then acknowledge: [Store.AckOutbox], [Store.AckSpawn],
// [Store.DeleteTimer]. A relay that dies in between delivers again, so everything is
// delivered at least once, and the receiver deduplicates by EntryID, for example as
// the EventID of Update. [Store.CreateChild] makes a child at most once.
//
// An execution that handles its own entry acknowledges it in the same commit, by
// Changes.Acks. A timer that was armed again meanwhile, for another time, is left
// alone. See the examples Sweeps and of Changes.
//
// # Leases and relays
//
// [Store.NewRelay] makes a [Relay] from a handler for each kind of work. Any number of
// them, in any number of processes, share what is due: a relay claims an execution by a
// lease in its document, delivers what it owes in order (children, events, timers), and
// hands it over. What fails is kept back and tried again, with the rest of its
// execution; what fails too often, or is [Permanent], goes to the dead letters
// ([Store.DeadLetters], [Store.Requeue]). [Relay.Drain] ends when nothing is due.
//
// A handler that is slow may lose its lease. Its ctx then ends with [ErrLeaseLost] as
// the cause, and every write that carries the entry's Token is refused: pass the entry
// itself to Changes.Acks, and a commit that handles it also consumes it, once. Delivery
// is at least once all the same, so deduplicate by EntryID what is not a commit of the
// same execution.
//
// [Store.Claim] and [Store.Complete] are the same by hand. Purge deletes what is finished
// and owes nothing. See the example Relay.
//
// # Transactions
//
// None is needed. Where there is a replica set, a commit can be part of a transaction
// of yours: pass the context that the driver's WithTransaction gives to its callback.
// Load, LoadForEvent, IsProcessed, Commit, Update, CreateChild, Delete, AckOutbox,
// AckSpawn and DeleteTimer join it. Other reads see what is committed; other writing
// methods refuse, because they would commit beside it.
//
// The callback may run twice: load inside it, and drop the value after an abort,
// because its version has moved in memory. Name the callback's context ctx as well, so
// that it hides the outer one, which would write beside the transaction. Inside a
// transaction nothing is retried and no outcome asked for; the driver's error comes
// back with its labels. Commit the transaction with write concern majority, the
// driver's default: the store reads with majority, and after a weaker commit would
// not see it at once. See the example Transactions.
//
// # Listing
//
// [Store.List] pages by key and filters on the server; every execution that exists
// throughout appears exactly once. [Store.All] iterates over the pages. [Store.Inspect]
// shows one whole document, [Store.ReadTrace] its timeline. A document that somebody
// damaged stops none of them: its row has Err, a sweep goes past it and tells
// Config.OnDamaged. See the examples of Store.List and Store.All.
//
// # Limits
//
// A document cannot pass 16 MiB ([ErrTooLarge]); what is not acknowledged counts, and
// Config.WarnBytes warns earlier. An execution remembers its newest
// Config.ProcessedMax event ids (1000); older ones are not recognised. Times are by
// Config.Clock, never the server's, and kept to the microsecond or finer. Delivery is at least
// once.
//
// During a rolling deploy an older program loads what a newer one wrote, and commits
// it without the fields that it does not know. So add a field in one release and use
// it in the next.
//
// See the example Limits.
package mongostore
