// Package brokerapi is the broker as its admin API shows it.
//
// A driver (one folder below this one) turns a broker's own admin protocol into
// Broker and the optional capabilities. Drivers report and obey; they never
// decide: what to load, quiesce or unload is decided in package recovery.
//
// Guaranteed by every driver, and checked by brokertest: every call returns when
// its context ends; Load, Quiesce and Unload may be repeated; no call deletes a
// topic's data. Not guaranteed: that an answer is still true when it arrives.
//
// Topics are named /namespace/topic everywhere.
package brokerapi

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrIdentity is wrapped by errors that say that something answered at the admin
// address, and that it is not the broker (or not one broker) expected there.
var ErrIdentity = errors.New("not the expected broker")

// ErrElsewhere is wrapped by Load when another broker of the same cluster serves the
// topic, and says so itself.
var ErrElsewhere = errors.New("served by another broker")

// ErrRemains is wrapped by SetMode(Active) when the broker is active, and something that a drain
// left in its cluster is still to be removed: it is called again at the next audit.
var ErrRemains = errors.New("what a drain left is still to be removed")

// Report is what a broker says of itself, and its driver of it.
type Report struct {
	// Name is the broker's own name if it survives restarts, else empty.
	Name string
	// Instance changes with every start of the broker process. Empty: which process answers is not
	// known, and nothing is decided about another than before.
	Instance string
	// Supposed says why Instance may change without a new start, with the remedy, in one
	// line that names the setting; empty: it does not.
	Supposed string
	// StartedAt is the wall-clock time at which the process started; zero if the
	// broker does not tell.
	StartedAt time.Time
	// Version is the broker's version as it states it.
	Version string
	// DataDir is the data directory as the broker states it; empty if it does not.
	DataDir string
	// Unable says in one sentence why clients are not well served though the process is well: that
	// rests on others too, on its storage above all. It decides readiness, and never the lease.
	// It wraps ErrUntried while nobody can tell yet.
	Unable error
	// MustGo says in one sentence why the process must be stopped for a reason of its own; empty:
	// it need not. It is never so of a process that has just started. It counts with an error, too.
	MustGo string
	// Leaving says in one sentence that the process ends by itself, on purpose; empty: it does not.
	Leaving string
	// Others is how many other brokers its cluster takes for alive and active now; nil: it was not
	// told. A broker that has not joined yet, or is cut off from the others, does not know.
	Others *int
	// Notes are for operators: nothing is done about them.
	Notes []Note
}

// Note is something wrong with a broker that serves all the same.
type Note struct {
	Kind string // a word, such as stale_view, for metrics and events
	Text string // one sentence, with the remedy
}

// StaleView is the kind of a note that the broker does not see any more what changes in its
// cluster's metadata.
const StaleView = "stale_view"

// ErrUntried is wrapped by Report.Unable while it was not tried what the broker is able to.
var ErrUntried = errors.New("not tried yet")

// Held is what a broker holds. Topics that Holdfast did not name are in neither of the
// first two lists.
type Held struct {
	Serving  []string // clients can use it now
	Quiesced []string // it is here and quiesced
	// Unreadable is what else is served, or may be: what the broker calls it, in quotes and
	// cut to MaxUnreadable bytes. It has no name here, so nobody loads, quiesces or unloads it.
	Unreadable []string
}

// MaxUnreadable is how long an entry of Held.Unreadable may be, in bytes.
const MaxUnreadable = 200

// Unreadable is what the broker calls something, as Held.Unreadable shows it.
func Unreadable(name string) string {
	if len(name) > MaxUnreadable {
		name = name[:MaxUnreadable]
	}
	shown := strconv.QuoteToASCII(name)
	if len(shown) > MaxUnreadable {
		shown = shown[:MaxUnreadable-3] + "..."
	}
	return shown
}

// Broker is what every driver provides.
type Broker interface {
	// Probe is called each second, and costs little. It says who answers, and that the process is
	// well. An error says in one sentence what is wrong and what to look at: the process is silent,
	// or not well. It wraps ErrUnseen where that says something of us and nothing of the broker, and
	// ErrIdentity if the addresses belong to different brokers or to something else altogether.
	// With an error the report says who answers where that is known all the same.
	Probe(ctx context.Context) (Report, error)
	// Topics lists what the broker holds. An entry that cannot be read is in
	// Held.Unreadable and voids no other; an error says that there is no list.
	Topics(ctx context.Context) (Held, error)
	// Load makes the broker serve the topic. record is the topic's own record in
	// etcd, nil if it has none. Loading what is loaded changes nothing.
	Load(ctx context.Context, topic string, record []byte) error
	// Capabilities says which of the optional interfaces do something here.
	Capabilities() Capabilities
	// Close frees the driver's connections and waits for its goroutines.
	Close() error
}

// Quiescer stops producers with an error that they retry. Data, consumers and
// cursors stay. Quiescing a quiesced topic changes nothing.
type Quiescer interface {
	Quiesce(ctx context.Context, topic string) error
}

// Unloader makes the broker stop serving a topic. Its data stays where it is.
// Unloading a topic that is not there changes nothing.
type Unloader interface {
	Unload(ctx context.Context, topic string) error
}

// Releaser gives up what a process of the broker that has ended still holds in its own cluster,
// so that others need not wait for it.
type Releaser interface {
	// Release is asked for only when that process, of Report.Instance, is proven to have ended.
	// What another process holds, and what was not seen while that one lived, is left alone.
	Release(ctx context.Context, instance string) error
}

// Mode is what a broker can be told to be.
type Mode string

// The modes that SetMode knows. Draining is the way to drained, and Holdfast's own.
const (
	Active  Mode = "active"
	Drained Mode = "drained"
)

// ModeSetter is a broker that has a mode of its own.
type ModeSetter interface {
	// SetMode makes the broker active, or drained: it then takes no topic and gives up
	// those that it has; their data stays. It returns nil when the broker has become
	// what was asked for, and is called until it has, and again each audit while a drain
	// lasts: whatever undoes it is undone in it, and a broker that is so already is not
	// changed. One that is active is let be: what its own tool makes of it is an operator's word. It may take as long as ctx. reason is for the broker's own log.
	SetMode(ctx context.Context, mode Mode, reason string) error
}

// Capabilities are data, so that they can be printed and tested.
type Capabilities struct {
	Quiesce   bool // Quiescer
	Unload    bool // Unloader
	LocalData bool // topics' data is on this broker only: failover must hold
	// MustStop: a running broker whose registration has gone destroys or serves, so
	// quiescing is not enough and the process must be stopped.
	MustStop bool
	// FencesItself: the storage fences whoever was replaced, so a running broker whose
	// registration has gone does no harm to data, and need neither be quiesced nor stopped.
	FencesItself bool

	Steer bool // ModeSetter

	// Registers: the broker writes its own registration, which is adopted.
	Registers bool
	// NamedByInstance: it registers under Report.Instance, which is another at each
	// start; the id that it was given is only Holdfast's.
	NamedByInstance bool
	// Assigns: the broker's own cluster decides which topics it serves. What it serves
	// is wanted, and nothing of it is an orphan.
	Assigns bool
}

// named is a capability with its name.
type named struct {
	has  bool
	name string
}

func present(list ...named) (names []string) {
	for _, n := range list {
		if n.has {
			names = append(names, n.name)
		}
	}
	return names
}

// Can names what can be asked of the broker, in a fixed order.
func (c Capabilities) Can() []string {
	return present(named{c.Quiesce, "quiesce"}, named{c.Unload, "unload"},
		named{c.Steer, "steer"})
}

// Has names how the broker is otherwise than most, in a fixed order.
func (c Capabilities) Has() []string {
	return present(named{c.LocalData, "local-data"}, named{c.MustStop, "must-stop"},
		named{c.FencesItself, "fences-itself"},
		named{c.Registers, "registers-itself"}, named{c.NamedByInstance, "named-by-instance"},
		named{c.Assigns, "assigns-topics"})
}

// String is both lists for people: "can: quiesce, steer; has: local-data".
func (c Capabilities) String() string {
	text := "can: only serve"
	if can := c.Can(); len(can) > 0 {
		text = "can: " + strings.Join(can, ", ")
	}
	if has := c.Has(); len(has) > 0 {
		text += "; has: " + strings.Join(has, ", ")
	}
	return text
}

// List names the capabilities that are present, in a fixed order.
func (c Capabilities) List() []string { return append(c.Can(), c.Has()...) }

// SplitTopic takes /namespace/topic apart. Both parts are non-empty and hold no slash.
func SplitTopic(topic string) (namespace, name string, err error) {
	rest, ok := strings.CutPrefix(topic, "/")
	if ok {
		namespace, name, ok = strings.Cut(rest, "/")
	}
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("topic %q: want the form /namespace/topic", topic)
	}
	return namespace, name, nil
}
