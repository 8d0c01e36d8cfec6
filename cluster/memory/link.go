package memory

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Direction says which messages a cut drops.
type Direction int

// The directions.
const (
	Requests Direction = 1 << iota
	Replies
	BothWays = Requests | Replies
)

// NoticedAfter is after how long a client of package cluster gives a silent connection up:
// its ping's interval and timeout.
const NoticedAfter = 13 * time.Second

// DialedFor is for how long a client of package cluster tries to connect before it says
// that it cannot.
const DialedFor = 3 * time.Second

var (
	errSilent  = status.Error(codes.Unavailable, "keepalive ping failed to receive ACK within timeout")
	errDialing = status.Error(codes.Unavailable, "dial timeout")
	errRefused = status.Error(codes.Unavailable, "connection refused")
	errReset   = status.Error(codes.Unavailable, "connection reset by peer")
)

// Link is a network path that can be cut, as one cable between one client and the server.
//
// A message that meets a cut waits, as it would in a socket's buffer: after the heal it
// passes, unless its call or connection has ended by then. A cut that lasts ends the
// connection, so everything under way fails, Unavailable. No other comes about before the
// heal, whatever the cut's direction: what is begun without one waits for DialedFor, then
// fails likewise. Delays hold each message of a stream up in turn. All methods are safe
// for concurrent use.
type Link struct {
	mu      sync.Mutex
	notice  time.Duration
	late    bool
	cut     Direction
	refused bool
	delay   func(Direction) time.Duration
	changed chan struct{} // closed, and replaced, with each change
	conn    context.Context
	lose    context.CancelCauseFunc
	alarm   *time.Timer // set from a cut until it is noticed
	down    bool        // the cut was noticed: there is no connection
}

// NewLink makes a whole link without delays.
func NewLink() *Link {
	l := &Link{notice: NoticedAfter, changed: make(chan struct{})}
	l.connect()
	return l
}

func (l *Link) connect() { l.conn, l.lose = context.WithCancelCause(context.Background()) }

// SetNotice sets after how long a cut ends the connection, instead of NoticedAfter. It
// counts for cuts to come.
func (l *Link) SetNotice(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notice = d
}

// SetLate says whether a request whose caller has given up is delivered all the same once
// its delay is over or the cut heals, as one that the kernel holds is.
func (l *Link) SetLate(late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = late
}

// SetDelay has f asked how long each message takes; nil is no time. f is called with the
// link locked.
func (l *Link) SetDelay(f func(Direction) time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = f
}

// Cut drops, from now on, what goes in the given directions, and nothing else.
func (l *Link) Cut(d Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := l.cut == 0
	l.cut = d
	if whole && d != 0 {
		l.watchSilence()
	} else if d == 0 {
		l.stopAlarm()
	}
	l.change()
}

// Refuse has the server's host answer that nobody listens: everything fails at once.
func (l *Link) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = true
	l.breakWith(errRefused)
	l.change()
}

// Break ends the connection, Unavailable, and lets new ones through at once.
func (l *Link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breakWith(errReset)
}

// Heal ends cuts and refusals.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.refused = 0, false
	l.stopAlarm()
	l.change()
}

func (l *Link) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Link) stopAlarm() {
	l.down = false
	if l.alarm != nil {
		l.alarm.Stop()
		l.alarm = nil
	}
}

// watchSilence ends the connection when the cut has lasted. The caller holds the mutex.
func (l *Link) watchSilence() {
	var alarm *time.Timer
	alarm = time.AfterFunc(l.notice, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.alarm == alarm { // not healed meanwhile
			l.alarm, l.down = nil, true
			l.breakWith(errSilent)
			l.change()
		}
	})
	l.alarm = alarm
}

func (l *Link) breakWith(err error) {
	l.lose(err)
	l.connect()
}

// Connection implements Path.
func (l *Link) Connection() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// Request implements Path.
func (l *Link) Request(ctx context.Context, _ string) error { return l.pass(ctx, Requests) }

// Reply implements Path.
func (l *Link) Reply(ctx context.Context, _ string) error { return l.pass(ctx, Replies) }

func (l *Link) pass(ctx context.Context, d Direction) error {
	l.mu.Lock()
	conn := l.conn
	end := ctx
	if l.late && d == Requests {
		end = conn
	}
	var delay time.Duration
	if l.delay != nil {
		delay = l.delay(d)
	}
	l.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-end.Done():
			timer.Stop()
			return ended(ctx, conn)
		}
	}
	var dialing *time.Timer
	var dialed <-chan time.Time
	for {
		l.mu.Lock()
		cut, down, refused, changed := l.cut, l.down, l.refused, l.changed
		l.mu.Unlock()
		switch {
		case end.Err() != nil || conn.Err() != nil: // a heal that comes with the end comes too late
			return ended(ctx, conn)
		case refused:
			return errRefused
		case cut&d == 0 && !down:
			return nil
		}
		if down && dialing == nil {
			dialing = time.NewTimer(DialedFor)
			defer dialing.Stop()
			dialed = dialing.C
		}
		select {
		case <-changed:
		case <-dialed:
			return errDialing
		case <-end.Done():
			return ended(ctx, conn)
		}
	}
}

// ended is the reason for which a message was lost.
func ended(ctx, conn context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if cause := context.Cause(conn); cause != nil {
		return cause
	}
	return ctx.Err()
}
