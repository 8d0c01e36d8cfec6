package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
)

// alarm wakes at a moment on the boot clock. Go's timers count on the monotonic
// clock: after a suspension they are late by its whole length, and the fence point
// may have passed meanwhile. The kernel fires this one as soon as the host runs.
type alarm struct {
	file *os.File
	c    chan struct{}
	over atomic.Bool
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make a timer on the boot clock: %w", err)
	}
	return &alarm{file: os.NewFile(uintptr(fd), "boot-clock timer"), c: make(chan struct{}, 1)}, nil
}

// C receives a value when a moment that was set has come. It has room for one.
func (a *alarm) C() <-chan struct{} { return a.c }

// Set replaces the moment. One that has passed fires at once. After the end of Run
// it does nothing.
func (a *alarm) Set(at lease.Instant) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(at), 1))} // zero would disarm
	conn, err := a.file.SyscallConn()
	if err == nil {
		var setErr error
		err = conn.Control(func(fd uintptr) { setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) })
		err = errors.Join(err, setErr)
	}
	if err != nil && !a.over.Load() {
		return fmt.Errorf("set the timer on the boot clock: %w", err)
	}
	return nil
}

// Run delivers until ctx ends, and then closes the timer.
func (a *alarm) Run(ctx context.Context) error {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		a.over.Store(true)
		a.file.Close()
	})
	defer func() {
		if !stop() {
			<-closed
		}
	}()
	for count := make([]byte, 8); ; {
		_, err := a.file.Read(count)
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("wait for the timer on the boot clock: %w", err)
		}
		select {
		case a.c <- struct{}{}:
		default:
		}
	}
}

// late is by how much the alarm comes after the loop's own timer, so that it fires
// only when that one does not.
const late = 50 * time.Millisecond

// setAlarm has the loop woken even if Go's timer, which was set to d, stands still.
func (a *agent) setAlarm(d time.Duration) {
	if a.alarm == nil {
		return
	}
	if err := a.alarm.Set(a.clock().Add(d + late)); err != nil && !a.alarmFailed {
		a.alarmFailed = true
		a.log.Error("after a suspension the fence may be late by as long as it lasted", "err", err)
	}
}
