// Package outbox keeps events in the user's own transaction, and delivers each to the
// handlers that subscribed to it: a change in your collections and its event, both or
// neither; then every handler gets the event at least once, those of one key in the order
// of their commits. It needs a replica set; one node is enough.
//
// # Publishing
//
// A [Store] appends events in the transaction that ctx carries, and a [Bus] on it knows
// who subscribed to what:
//
//	type OrderPlaced struct {
//		OrderID string `json:"order_id"`
//	}
//
//	func (OrderPlaced) EventType() string { return "order.placed.v1" }
//
//	err := outbox.Subscribe(bus, "mailer", func(ctx context.Context, e outbox.Event[OrderPlaced]) error {
//		return mail(ctx, e.Payload.OrderID, e.ID)
//	}, outbox.SubscribeOptions{})
//	...
//	err = store.Transaction(ctx, func(ctx context.Context) error {
//		if _, err := orders.InsertOne(ctx, order); err != nil {
//			return err
//		}
//		return bus.Publish(ctx, outbox.PublishOptions{Key: order.CustomerID}, OrderPlaced{order.ID})
//	})
//	...
//	err = bus.Run(ctx)
//
// Call both contexts ctx, so that the inner one, which carries the session, hides the
// outer. Return errors of the server as they are: the function runs again after a
// conflict, so what it does outside the transaction must bear that. A transaction of your
// own serves as well: mongo.NewSessionContext, or WithTransaction of a session.
//
// Each delivery is made for the handlers that the publishing process knows. So every
// process subscribes all handlers, with a nil function for those that run elsewhere.
//
// # Delivery
//
// A handler that returns nil completes the delivery. One that returns an error gets it
// again, later, and after MaxAttempts it is a dead letter, which [Store.Requeue] puts
// back. Deliver at least once means that a handler may see an event again: after a crash,
// or when its lease was lost. Deduplicate by the event's id; or subscribe with
// Transactional: then what the handler writes with its ctx and the completion are one
// transaction.
//
// Per handler and key, events are delivered in the order in which their transactions
// committed, one at a time, over all processes. A failing event holds back those after
// it; a dead one does not. Events without a key have no order.
//
// # Leases
//
// A claimed delivery is leased for 30 s, and the bus renews that. Who lost a lease cannot
// change the delivery any more: every write carries the lease's token. One that has run
// out counts as long as nobody else took it. Time is [Config].Clock of each process;
// clocks may differ by a quarter of a lease.
//
// # Beside the root package
//
// [Bus.Forward] is a handler for the Outbox of a mongostore.Relay: what an execution
// emits then reaches all who subscribed here. And a commit of an execution joins a
// transaction: mongostore's Store.Commit and Append with one ctx are both stored, or
// neither.
//
// # Limits
//
//   - Publishers of one key wait for each other: its number is part of the transaction.
//     On hot keys append first, keep the transaction short, publish several at once.
//   - A process sees at once what it published itself, and what others publish within
//     50 ms after work, or BusConfig.PollEvery when idle.
//   - After a crash between two commands of a publisher or a worker, a key may wait for
//     about a second, until somebody claims and finds it.
//   - A process that is killed inside a transaction leaves it open on the server until
//     transactionLifetimeLimitSeconds, 60 by default: what it wrote is locked so long, the
//     keys that it published to, the delivery that it was completing, and documents of
//     yours, with all transactions that write them too.
//   - A transactional handler that goes on after its Timeout, without a look at its ctx, can
//     run beside the next try; it commits nothing then.
//   - A delivery holds no payload; its event does, of up to 16 MiB less 64 KiB.
package outbox
