package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Plan is what one order will meet: made from the seed, so that a run can be had
// again with the same input.
type Plan struct {
	Account string        `json:"account"`
	Amount  int64         `json:"amount"` // cents
	Payer   string        `json:"payer"`
	PayWait time.Duration `json:"pay_wait"`
	Regions []Region      `json:"regions"`
	Transit time.Duration `json:"transit"`
}

// Region packs its part of an order.
type Region struct {
	Name  string        `json:"name"`
	Takes time.Duration `json:"takes"`
}

const (
	ordersPerAccount = 20
	openingBalance   = 100_000_000 // cents
)

func orderID(n int) string   { return fmt.Sprintf("order:%04d", n) }
func accountID(n int) string { return fmt.Sprintf("account:%02d", n) }

// accounts is how many accounts pay for so many orders.
func accounts(orders int) int { return max(1, orders/ordersPerAccount) }

// planOrder plans order n of so many: of 100, 5 are paid after a reminder and 3
// never; of 20 children one takes long.
func planOrder(seed uint64, n, orders int, payWait time.Duration) Plan {
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	millis := func(from, to int) time.Duration { return time.Duration(from+rng.IntN(to-from)) * time.Millisecond }
	takes := func() time.Duration {
		if rng.IntN(20) == 0 {
			return millis(1000, 2500)
		}
		return millis(50, 400)
	}
	payer := prompt
	switch n % 100 { // by number, so that small runs have them too
	case 3, 23, 43, 63, 83:
		payer = forgetful
	case 7, 47, 87:
		payer = gone
	}
	return Plan{
		Account: accountID(rng.IntN(accounts(orders))),
		Amount:  int64(100 + rng.IntN(50_000)),
		Payer:   payer,
		PayWait: payWait,
		Regions: []Region{{"North", takes()}, {"South", takes()}},
		Transit: millis(100, 500),
	}
}
