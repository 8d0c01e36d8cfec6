// Package testseed gives tests that draw at random their seed. It is the same in every
// run, so that a change is judged by what it does; HOLDFAST_SEED sets another.
package testseed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Value is the decimal number in HOLDFAST_SEED, and 1 when that is unset.
func Value() uint64 {
	given := os.Getenv("HOLDFAST_SEED")
	if given == "" {
		return 1
	}
	seed, err := strconv.ParseUint(given, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("HOLDFAST_SEED: %v", err))
	}
	return seed
}

// New draws from Value, and logs it for the report of a failure.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	seed := Value()
	t.Logf("HOLDFAST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
