// Package brokerapi is the broker as its admin API shows it.
//
// A driver (one folder below this one) turns a broker's own admin protocol into
// Broker and the optional interfaces. Drivers report and obey; they never
// decide: what to serve and to withdraw is decided in package recovery.
//
// Guaranteed by every driver, and checked by brokertest: every call returns when
// its context ends; Serve and Withdraw may be repeated; no call deletes a
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

	"holdfast/recovery/moves"
)

// ErrIdentity is wrapped by errors that say that something answered at the admin
// address, and that it is not the broker (or not one broker) expected there.
var ErrIdentity = errors.New("not the expected broker")

// ErrElsewhere is wrapped by Serve when another broker of the same cluster serves the
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
	Serving   []string // clients can use it now
	Withdrawn []string // it is here, and refuses producers
	// Unreadable is what else is served, or may be: what the broker calls it, in quotes and
	// cut to MaxUnreadable bytes. It has no name here, so nobody serves or withdraws it.
	Unreadable []string
	// Foreign is what else it holds that is no topic, and is nobody's business here.
	Foreign []string
}

// MaxUnreadable is how long an entry of Held.Unreadable may be, in bytes.
const MaxUnreadable = 200

// Unreadable is what the broker calls something, as Held.Unreadable shows it.
func Unreadable(name string) string {
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
	// Serve makes the broker serve the topic. record is the topic's own record in
	// etcd, nil if it has none. Serving what is served changes nothing. A record that cannot be
	// read, or asks for what cannot be, is ErrRefused.
	Serve(ctx context.Context, topic string, record []byte) error
	// Withdraw makes the broker stop serving a topic: producers get an error that they retry.
	// Its data, consumers and cursors stay where they are. Withdrawing what is withdrawn, or not
	// there, changes nothing. It wraps errors.ErrUnsupported where nothing but the end of its
	// process takes a topic from the broker.
	Withdraw(ctx context.Context, topic string) error
	// Close frees the driver's connections and waits for its goroutines.
	Close() error
}

// Releaser gives up what a process of the broker that has ended still holds in its own cluster,
// so that others need not wait for it.
type Releaser interface {
	// Release is asked for only when that process, of Report.Instance, is proven to have ended.
	// What another process holds, and what was not seen while that one lived, is left alone.
	Release(ctx context.Context, instance string) error
}

// RecordReader knows the fields of a topic's record.
type RecordReader interface {
	// Misspelt says of each field that does nothing, and is nearly one that does, which that is.
	Misspelt(record []byte) []string
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
	// changed. One that is active is let be: what its own tool makes of it is an operator's word.
	// It may take as long as ctx. reason is for the broker's own log.
	SetMode(ctx context.Context, mode Mode, reason string) error
}

// ErrRefused is wrapped by the errors of Serve, Mover and Sender after which trying again changes
// nothing, for as long as nobody changes what they name.
var ErrRefused = errors.New("refused")

// Peer is another broker of the cluster, as its registration shows it.
type Peer struct {
	ID  string `json:"id"`
	URL string `json:"url,omitempty"` // where its clients or its admin API are, whichever it advertises
}

// Meter is told of bytes before they are moved. It waits where a rate was set, and its error,
// that of ctx, ends the call.
type Meter func(ctx context.Context, bytes int) error

// Mover is a broker whose topics' data goes from one to another with its help. What is in an
// answer is compared by package moves, and by nobody else.
//
// Each call may be repeated: the sidecar may have ended after any of them, and before the journal
// had it. And each may come late, from a sidecar that was frozen while others went on. So what
// changes something carries the move's ID: Seal and Copy leave it with the topic, until the next
// move's Seal, and what bears another's is refused. IDs grow: an older move than the one that was
// there last is refused by both. Serve takes a seal away, and refuses a copy that is not whole: it
// is called where no move holds the topic.
type Mover interface {
	// Extent says where a topic stands that is here, served or withdrawn, and changes nothing.
	// What cannot be moved at all (data in memory, a mirror) it refuses.
	Extent(ctx context.Context, topic string) (moves.Extent, error)
	// Accept looks whether a topic like that can be taken here, copied from there and served with
	// that record, which is as in Serve, and changes nothing. It refuses where something of that name
	// is here, but for what a Copy left that was never resumed, or there is no room.
	Accept(ctx context.Context, topic string, record []byte, like moves.Extent, from Peer) error
	// Seal withdraws producers, with an error that they retry, makes consumers' positions durable
	// and pauses them, flushes, and waits until nothing is appended any more. It lasts until Resume
	// or Remove, over restarts. Without force it refuses while consumers are active. It refuses what
	// another move has sealed, and what this one or a later one has resumed.
	Seal(ctx context.Context, topic, move string, force bool) (moves.Extent, error)
	// Copy makes here what from has sealed, not served, in the place of what an earlier try has
	// left; what is whole already it leaves. It refuses where anything but a copy is that was never
	// resumed, or a later move's. Brokers that share their storage copy nothing.
	Copy(ctx context.Context, topic, move string, from Peer, sealed moves.Extent, meter Meter) (moves.Extent, error)
	// Resume serves the topic, with its consumers, from where it was sealed: at the target, or at
	// the source again. It refuses what does not stand there or bears another move's ID, but not
	// what it has resumed itself and has gone on since. sealed is nil where a seal may have been
	// begun and was not ended: then what another move has resumed is served. record is as in Serve.
	Resume(ctx context.Context, topic, move string, record []byte, sealed *moves.Extent) (moves.Extent, error)
	// Compare reads what was sealed at from and what is here, message by message.
	Compare(ctx context.Context, topic string, from Peer, sealed moves.Extent, meter Meter) (moves.Content, error)
	// Remove removes a topic's data from this broker: it is served by another. It refuses one that
	// is served here, or that this move has not sealed or copied; one that is not here is removed.
	Remove(ctx context.Context, topic, move string) error
}

// Sender is a broker whose own cluster moves topics.
type Sender interface {
	Broker
	// Send asks it to, and returns when the topic is served by that broker, with what was seen of
	// it in words. Without an ID the cluster chooses.
	Send(ctx context.Context, topic string, to Peer) (seen string, err error)
}

// Traits are how a broker is, as its settings say before anybody has asked it.
type Traits struct {
	// Places: the broker's own cluster decides which topics it serves. What it serves
	// is wanted, and nothing of it is an orphan.
	Places bool
	// LocalData: topics' data is on this broker only: failover must hold, and missing data drains.
	LocalData  bool
	AtDeadline AtDeadline
	// Registers: the broker writes its own registration, under Report.Instance, which is another at
	// each start; it is adopted, and the id that it was given is only Holdfast's.
	Registers bool
}

// AtDeadline is what must be done to a broker whose registration has gone.
type AtDeadline int

const (
	// Withdraw is enough.
	Withdraw AtDeadline = iota
	// Stop: while it runs it destroys or serves what is not its own.
	Stop
	// Nothing: its storage fences whoever was replaced, so it does no harm to data.
	Nothing
)

// List names the traits in a fixed order.
func (t Traits) List() (names []string) {
	for _, trait := range []struct {
		has  bool
		name string
	}{
		{t.Places, "places"}, {t.LocalData, "local-data"}, {t.AtDeadline == Stop, "must-stop"},
		{t.AtDeadline == Nothing, "fences-itself"}, {t.Registers, "registers-itself"},
	} {
		if trait.has {
			names = append(names, trait.name)
		}
	}
	return names
}

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
