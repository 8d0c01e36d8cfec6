// Command bench measures what is promised in figures, on real parts that it starts itself:
//
//	go run ./bench NAME [FLAG…]
//
// It prints what it measured, and then each limit with the figure that it is about. Exit code 1: one
// does not hold, or could not be measured; 2: wrong flags. A machine that does something else
// meanwhile makes figures worse: before a failure is believed, run it again, alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"holdfast/lab/bench/etcd"
	"holdfast/lab/bench/fence"
	"holdfast/lab/bench/guard"
	"holdfast/lab/bench/heal"
	"holdfast/lab/bench/idle"
	"holdfast/lab/bench/kit"
	"holdfast/lab/bench/load"
	"holdfast/lab/bench/move"
	"holdfast/lab/bench/neighbours"
)

var benches = map[string]func(*flag.FlagSet) kit.Bench{
	"etcd": etcd.Bench, "fence": fence.Bench, "guard": guard.Bench, "heal": heal.Bench, "idle": idle.Bench,
	"load": load.Bench, "move": move.Bench, "neighbours": neighbours.Bench,
}

func main() {
	kit.BeChild(map[string]func(string) error{"busy": guard.Busy, "bare": idle.Bare})
	if len(os.Args) < 2 || benches[os.Args[1]] == nil {
		fmt.Fprintf(os.Stderr, "usage: bench NAME [FLAG…]; NAME is one of %s\n", strings.Join(slices.Sorted(maps.Keys(benches)), ", "))
		os.Exit(2)
	}
	name := os.Args[1]
	flags := flag.NewFlagSet("bench "+name, flag.ExitOnError)
	run := benches[name](flags)
	_ = flags.Parse(os.Args[2:]) // it exits
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "bench %s: there are no arguments: %q\n", name, flags.Args())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	limits, err := run(ctx, os.Stdout)
	stop()
	if err = errors.Join(err, judge(os.Stdout, limits)); err != nil {
		fmt.Fprintf(os.Stderr, "bench %s: %v\n", name, err)
		os.Exit(1)
	}
}

// judge prints the limits. The error names those that do not hold.
func judge(out io.Writer, limits []kit.Limit) error {
	var broken []error
	fmt.Fprintln(out)
	for _, l := range limits {
		fmt.Fprintln(out, l)
		if !l.Holds() {
			broken = append(broken, fmt.Errorf("limit broken: %s", l))
		}
	}
	return errors.Join(broken...)
}
