//go:build race

package simulation

import "runtime"

// The race detector's own runtime ends now and then after many thousand goroutines
// ("ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346", or a segmentation violation in its
// depot of stacks), so it sees less of them.
//
// It compares what happened before what, so it finds the same races when only one thread
// runs Go code at a time, and its own lock-free tables have one writer then.
func init() { runtime.GOMAXPROCS(1) }
