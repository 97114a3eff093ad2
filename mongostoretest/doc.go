// Package mongostoretest helps to test code that uses mongostore: a database
// of a test's own on a real MongoDB ([Database]), and a clock that is moved by
// hand ([Clock]).
//
//	func TestOrderIsPaid(t *testing.T) {
//		client, db := mongostoretest.Database(t)
//		var clock mongostoretest.Clock
//		store, err := mongostore.New(client, mongostore.Config{Database: db, Clock: &clock})
//		...
//		clock.Advance(time.Hour)
//	}
//
// It needs nothing but the MongoDB driver and the standard library.
package mongostoretest
