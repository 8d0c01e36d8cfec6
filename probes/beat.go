package probes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// BeatEvery is the pause between two beats.
const BeatEvery = time.Second

// Beat wakes all who listen at the same moment, once a second on the boot clock. A process
// that sleeps pays for waking, hardly for what it wakes for: what is looked at every few
// seconds is looked at on the beat.
//
// The kernel wakes us by a descriptor. Go's own timers cost about twice as much: they wake
// a thread up to a millisecond early, and meanwhile the runtime's monitor looks again and
// again. They also stand still while the host is suspended, and are late by that much; a
// beat that was missed comes as soon as the host runs.
//
// A nil Beat never beats: who listens to it keeps time by itself.
type Beat struct {
	file      *os.File
	listeners []chan struct{}
}

// NewBeat returns a beat, which Run closes.
func NewBeat() (*Beat, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make a timer on the boot clock: %w", err)
	}
	every := unix.NsecToTimespec(int64(BeatEvery))
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set the timer on the boot clock: %w", err)
	}
	return &Beat{file: os.NewFile(uintptr(fd), "boot-clock timer")}, nil
}

// Listen returns a channel that receives a value at each beat and has room for one. It is
// called before Run.
func (b *Beat) Listen() <-chan struct{} {
	if b == nil {
		return nil
	}
	c := make(chan struct{}, 1)
	b.listeners = append(b.listeners, c)
	return c
}

// Carries reports whether what is due every d is due on a beat.
func (b *Beat) Carries(d time.Duration) bool { return b != nil && d >= BeatEvery && d%BeatEvery == 0 }

// Run beats until ctx ends, and then closes the timer.
func (b *Beat) Run(ctx context.Context) error {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(closed); b.file.Close() })
	defer func() {
		if stop() {
			b.file.Close()
		} else {
			<-closed
		}
	}()
	for count := make([]byte, 8); ; {
		_, err := b.file.Read(count)
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("wait for the timer on the boot clock: %w", err)
		}
		for _, c := range b.listeners {
			signal(c)
		}
	}
}

// DropStopped has Go's runtime forget timers that were stopped. It does so when another is
// added; until then each wakes the process when it would have been due.
func DropStopped() { time.AfterFunc(time.Hour, func() {}).Stop() }
