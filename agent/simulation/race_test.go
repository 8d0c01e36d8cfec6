//go:build race

package simulation

// raced: the race detector's own runtime ends now and then after many thousand
// goroutines ("ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346"), so it sees less of them.
const raced = true
