package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"holdfast/agent/config"
)

// settings of one simulated cluster.
type settings struct {
	Nodes, Topics int
	TTL           time.Duration
	Margin        time.Duration // 0: a third of the TTL
	Recover       time.Duration // recover window
	Grace         time.Duration // restart grace; 0: none
	Policy        string        // drain, reconnect; shutdown with Stop
	Retries       int           // session retries, with reconnect and Stop; 0: no limit
	Stop          bool          // the ladder ends with stop, and there is a guard
	Unquiesced    bool          // and has no quiesce; not drawn
	Forgets       bool          // brokers serve after a start what was quiesced before
	Placer        bool          // topics of brokers that are not registered move
	Locks         bool          // ownership locks
	Latency       time.Duration // of the way to etcd, one way
	Failover      string        // move, hold: the sidecars place the topics (rendezvous), with locks; empty: others do
	MinTTL        time.Duration // of etcd's leases; 0: what it has by default
	Several       bool          // a sidecar knows all members of etcd, not one
	Restarts      bool          // whatever runs the broker starts it again at once, whoever ended it
	Boot          time.Duration // how long a process of a broker takes before it serves, and answers
	Lag           time.Duration // up to so late some watches hear of some changes
	Late          int           // the last brokers, which join later
}

// pick draws one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func drawSettings(r *rand.Rand) settings {
	s := settings{
		Nodes:   2 + r.IntN(3),
		Topics:  1 + r.IntN(8),
		TTL:     pick[time.Duration](r, 2, 3, 4, 5, 8, 8, 16, 32) * time.Second,
		Recover: pick[time.Duration](r, 0, 0, 300*time.Millisecond, 2*time.Second),
		Policy:  pick(r, "drain", "drain", "drain", "reconnect"),
		Stop:    ladderStops && r.IntN(2) == 0,
		Forgets: r.IntN(4) == 0,
		Placer:  r.IntN(2) == 0,
		Latency: pick(r, 200*time.Microsecond, time.Millisecond, 10*time.Millisecond, 40*time.Millisecond),
	}
	switch {
	case s.TTL == 2*time.Second:
		s.Margin = 300 * time.Millisecond // more leaves no room for a second attempt
	case s.TTL <= 4*time.Second:
		s.Margin = pick[time.Duration](r, 0, 300*time.Millisecond, 500*time.Millisecond)
	default:
		s.Margin = pick[time.Duration](r, 0, 0, 300*time.Millisecond, time.Second, s.TTL/2)
	}
	if r.IntN(4) == 0 {
		s.Grace = s.TTL / 4
	}
	s.Locks = r.IntN(4) == 0
	if s.Stop {
		s.Policy = pick(r, s.Policy, s.Policy, "shutdown")
		if s.Policy == "reconnect" {
			s.Retries = pick(r, 0, 1, 2, 4)
		}
	}
	if r.IntN(4) == 0 {
		s.Failover = pick(r, "move", "move", "hold")
		s.Locks, s.Placer = true, false
		if s.Nodes > 2 {
			s.Late = pick(r, 0, 0, 1)
		}
	}
	if r.IntN(6) == 0 {
		s.MinTTL = s.TTL + pick[time.Duration](r, 1, 3)*time.Second
	}
	s.Several, s.Restarts = r.IntN(2) == 0, r.IntN(3) == 0
	return s
}

// drawBoot has a source of its own: the rest of a seed stays what it was. A process may come
// up at any time of the lease of the one before.
func drawBoot(seed uint64, ttl time.Duration) time.Duration {
	r := rand.New(rand.NewPCG(seed, 3))
	if r.IntN(2) == 0 {
		return 0
	}
	return time.Duration(r.Int64N(int64(ttl))).Round(time.Millisecond)
}

// drawLag has a source of its own, too.
func drawLag(seed uint64) time.Duration {
	return pick[time.Duration](rand.New(rand.NewPCG(seed, 6)), 0, 0, 0, 4) * time.Second
}

// granted is what etcd makes of the TTL.
func (s settings) granted() time.Duration { return max(s.TTL, s.MinTTL) }

func (s settings) margin() time.Duration {
	if s.Margin == 0 {
		return s.TTL / 3
	}
	return s.Margin
}

// config is what the sidecar of the broker is started with.
func (s settings) config(id, dir string) config.Config {
	c := config.Default()
	c.Driver, c.BrokerID, c.StateDir, c.ControlSocket = "nats", id, dir, "control"
	c.EtcdEndpoints = []string{"http://m0:2379"}
	if s.Several {
		c.EtcdEndpoints = append(c.EtcdEndpoints, "http://m1:2379", "http://m2:2379")
	}
	c.ProbeListen, c.WebListen = "probes:1", "web:2"
	c.LeaseTTL, c.LeaseDetachMargin, c.DetachmentRecoverWindow = s.TTL, s.Margin, s.Recover
	c.LeaveTimeout = 10 * time.Second // so that it ends within a schedule
	c.RestartGrace, c.SessionExpiredPolicy, c.SessionRetries = s.Grace, s.Policy, s.Retries
	c.Fence, c.Guard = []string{"ready", "quiesce"}, "off"
	if s.Grace > 0 {
		c.BrokerProcess = "broker"
	}
	if s.Stop {
		c.Fence, c.Guard, c.StopCommand = []string{"ready", "quiesce", "stop"}, "on", "stop"
	}
	if s.Unquiesced {
		c.Fence = []string{"ready", "stop"}
	}
	if s.Locks {
		c.OwnershipLocks = "on"
	}
	if s.Failover != "" {
		c.Assignment, c.Failover = "rendezvous", s.Failover
	}
	c.LoadTimeout = 5 * time.Second
	c.AuditInterval = 10 * time.Second
	return c
}

func (s settings) String() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%d brokers, %d topics, TTL %v, margin %v, recover window %v, policy %s, latency %v",
		s.Nodes, s.Topics, s.TTL, s.margin(), s.Recover, s.Policy, s.Latency)
	for _, f := range []struct {
		on   bool
		text string
	}{
		{s.Grace > 0, fmt.Sprintf("restart grace %v", s.Grace)},
		{s.Stop, "stop and guard"},
		{s.Unquiesced, "no quiesce"},
		{s.Forgets, "brokers forget what is quiesced"},
		{s.Placer, "a placer moves topics"},
		{s.Locks, "ownership locks"},
		{s.Failover != "", "rendezvous, " + s.Failover},
		{s.Late > 0, fmt.Sprintf("%d join later", s.Late)},
		{s.MinTTL > 0, fmt.Sprintf("granted %v", s.granted())},
		{s.Several, fmt.Sprintf("%d endpoints", members)},
		{s.Restarts, "brokers are restarted at once"},
		{s.Boot > 0, fmt.Sprintf("brokers boot for %v", s.Boot)},
		{s.Lag > 0, fmt.Sprintf("watches are up to %v late", s.Lag)},
		{s.Retries > 0, fmt.Sprintf("%d session retries", s.Retries)},
	} {
		if f.on {
			b.WriteString(", " + f.text)
		}
	}
	return b.String()
}
