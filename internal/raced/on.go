//go:build race

package raced

// Enabled says whether the race detector was built in.
const Enabled = true
