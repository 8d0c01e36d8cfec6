// Package raced tells tests whether the race detector watches them, which makes
// them ten times slower. Only tests import it.
package raced
