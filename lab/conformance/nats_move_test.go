package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/brokerapi"
	"holdfast/brokerapi/brokertest"
	"holdfast/brokerapi/nats"
	"holdfast/lab/harness"
	"holdfast/recovery/moves"
)

var _ brokertest.Carrier = (*server)(nil)

func (s *server) Beside(t *testing.T) brokertest.Server {
	t.Helper()
	beside := launchNamed(t, s.bin, "n2")
	beside.subjects = s.subjects
	return beside
}

func (s *server) Peer() brokerapi.Peer { return brokerapi.Peer{ID: s.Name, URL: s.URL()} }

func (s *server) Consume(topic, subscription string, n int) (data []string, err error) {
	err = s.with(func(ctx context.Context, js jetstream.JetStream) error {
		c, err := js.CreateOrUpdateConsumer(ctx, streamOf(topic), jetstream.ConsumerConfig{Durable: subscription, AckPolicy: jetstream.AckExplicitPolicy})
		for err == nil && len(data) < n {
			var m jetstream.Msg
			if m, err = c.Next(jetstream.FetchContext(ctx)); err == nil {
				data, err = append(data, string(m.Data())), m.DoubleAck(ctx)
			}
		}
		return err
	})
	return data, err
}

func (s *server) Attach(t *testing.T, topic, subscription string) (leave func()) {
	t.Helper()
	nc := must[*client.Conn](t)(client.Connect(s.URL()))
	sub := must[*client.Subscription](t)(nc.SubscribeSync(nc.NewInbox()))
	do(t, nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+streamOf(topic)+"."+subscription, sub.Subject, []byte(`{"batch":100,"expires":60000000000}`)))
	return nc.Close
}

// mover is one side of a move.
type mover struct {
	*server
	*nats.Broker
}

// sides are two servers of a kind each, source and target.
func sides(t *testing.T, from, to string) (source, target mover) {
	t.Helper()
	s, d := launchNamed(t, from, "n1"), launchNamed(t, to, "n2")
	return mover{s, opened(t, s.config())}, mover{d, opened(t, d.config())}
}

// betweenServers runs test with pairs of servers: of this module's, and from and to 2.9.
func betweenServers(t *testing.T, test func(t *testing.T, source, target mover)) {
	current, err := harness.Build(harness.NATSServer)
	do(t, err)
	old, err := exec.LookPath("nats-server")
	for _, pair := range []struct{ name, from, to string }{{"current", current, current}, {"2.9", old, old}, {"2.9 to current", old, current}} {
		t.Run(pair.name, func(t *testing.T) {
			if pair.from == old {
				if testing.Short() {
					t.Skip("the same again with an older server")
				}
				if out, _ := exec.Command(old, "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), "v2.9.") {
					t.Skip("no nats-server 2.9 on PATH")
				}
			}
			source, target := sides(t, pair.from, pair.to)
			test(t, source, target)
		})
	}
}

func free(context.Context, int) error { return nil }

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		do(t, err)
		return v
	}
}

// shaped is a stream as a move meets it.
type shaped struct {
	name    string
	topic   string
	cfg     func(*jetstream.StreamConfig)
	fill    func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string)
	then    func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) // at the target
	shrinks bool
}

// publish stores n messages and waits until all are acknowledged.
func publish(t *testing.T, ctx context.Context, js jetstream.JetStream, n int, message func(i int) *client.Msg) {
	t.Helper()
	for i := range n {
		if _, err := js.PublishMsgAsync(message(i), jetstream.WithStallWait(harness.Patience)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

func numbered(subject string) func(i int) *client.Msg {
	return func(i int) *client.Msg {
		return &client.Msg{Subject: subject, Data: fmt.Appendf(nil, "message %d", i)}
	}
}

// pulled takes n messages of a durable pull consumer, and acknowledges all but those left out.
func pulled(t *testing.T, ctx context.Context, s jetstream.Stream, cfg jetstream.ConsumerConfig, n int, leave ...int) {
	t.Helper()
	c := must[jetstream.Consumer](t)(s.CreateOrUpdateConsumer(ctx, cfg))
	batch := must[jetstream.MessageBatch](t)(c.Fetch(n))
	i := 0
	for m := range batch.Messages() {
		if i++; !slices.Contains(leave, i) && cfg.AckPolicy != jetstream.AckNonePolicy {
			do(t, m.DoubleAck(ctx))
		}
	}
	if i != n {
		t.Fatalf("%d messages fetched, want %d", i, n)
	}
}

var shapes = []shaped{
	{name: "never used", topic: "/move/never"},
	{name: "one message", topic: "/move/one", fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 1, numbered(subject))
	}},
	{name: "purged", topic: "/move/purged", fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 10, numbered(subject))
		do(t, s.Purge(ctx))
	}},
	{name: "many", topic: "/move/many", fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		n := 100_000
		if testing.Short() {
			n = 20_000
		}
		publish(t, ctx, js, n, numbered(subject))
	}},
	{name: "few large ones behind many small", topic: "/move/sizes", fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 3_020, func(i int) *client.Msg {
			m := numbered(subject)(i)
			if i >= 3_000 {
				m.Data = make([]byte, 400_000)
			}
			return m
		})
	}},
	{name: "deleted in the middle and at both ends", topic: "/move/deleted", fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 300, numbered(subject))
		for seq := uint64(1); seq <= 300; seq++ {
			if seq < 5 || seq > 100 && seq < 250 || seq > 298 {
				do(t, s.DeleteMsg(ctx, seq))
			}
		}
	}},
	{name: "headers, limits per subject", topic: "/move/per.subject", cfg: func(c *jetstream.StreamConfig) {
		c.Subjects, c.MaxMsgsPerSubject = []string{"move.subject.>"}, 3
	}, fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 200, func(i int) *client.Msg {
			m := client.NewMsg(fmt.Sprintf("move.subject.%d", i%13))
			m.Header["X-Odd"] = []string{"a", "größe", ""}
			m.Data = make([]byte, i)
			return m
		})
	}},
	{name: "per-key history with rollups", topic: "/move/a kv +=", cfg: func(c *jetstream.StreamConfig) {
		c.Subjects, c.MaxMsgsPerSubject, c.AllowRollup, c.AllowDirect, c.DenyDelete, c.Discard = []string{"move.kv.>"}, 5, true, true, true, jetstream.DiscardNew
	}, fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 100, func(i int) *client.Msg {
			m := client.NewMsg(fmt.Sprintf("move.kv.%d", i%10))
			if i%17 == 0 {
				m.Header.Set("KV-Operation", "PURGE")
				m.Header.Set(client.MsgRollup, client.MsgRollupSubject)
			}
			return m
		})
	}},
	{name: "consumers with pending acknowledgements", topic: "/größe/日本.*", cfg: func(c *jetstream.StreamConfig) {
		c.Subjects = []string{"move.pending"}
	}, fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 50, numbered("move.pending"))
		pulled(t, ctx, s, jetstream.ConsumerConfig{Durable: "reader", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour}, 20, 11, 15)
		pulled(t, ctx, s, jetstream.ConsumerConfig{Durable: "nobody", AckPolicy: jetstream.AckNonePolicy}, 7)
		must[jetstream.Consumer](t)(s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "unused", AckPolicy: jetstream.AckAllPolicy}))
		must[jetstream.Consumer](t)(s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, InactiveThreshold: time.Hour}))
		in := client.NewInbox()
		sub := must[*client.Subscription](t)(js.Conn().SubscribeSync(in))
		c := must[jetstream.PushConsumer](t)(s.CreateOrUpdatePushConsumer(ctx, jetstream.ConsumerConfig{Durable: "pushed", DeliverSubject: in, AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour}))
		for i := range 30 {
			m := must[*client.Msg](t)(sub.NextMsgWithContext(ctx))
			if i < 9 {
				do(t, m.AckSync())
			}
		}
		_ = sub.Unsubscribe()
		for { // the server notes that it went
			if info := must[*jetstream.ConsumerInfo](t)(c.Info(ctx)); !info.PushBound {
				return
			}
		}
	}, then: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, _ string) {
		// What is unacknowledged waits for its time; what was not delivered yet comes next.
		c := must[jetstream.Consumer](t)(s.Consumer(ctx, "reader"))
		if info := must[*jetstream.ConsumerInfo](t)(c.Info(ctx)); info.NumAckPending != 2 || info.NumPending != 30 {
			t.Errorf("%d pending, %d to come", info.NumAckPending, info.NumPending)
		}
		m := must[jetstream.Msg](t)(c.Next())
		if about := must[*jetstream.MsgMetadata](t)(m.Metadata()); about.Sequence.Stream != 21 || string(m.Data()) != "message 20" {
			t.Errorf("it goes on with %d, %s", about.Sequence.Stream, m.Data())
		}
		p := must[jetstream.PushConsumer](t)(s.PushConsumer(ctx, "pushed"))
		if info := must[*jetstream.ConsumerInfo](t)(p.Info(ctx)); info.NumAckPending != 41 || info.Delivered.Stream != 50 {
			t.Errorf("%d of those pushed pend, up to %d", info.NumAckPending, info.Delivered.Stream)
		}
	}},
	{name: "interest", topic: "/move/interest", shrinks: true, cfg: func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
		fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
			must[jetstream.Consumer](t)(s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "a", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour}))
			publish(t, ctx, js, 50, numbered(subject))
			pulled(t, ctx, s, jetstream.ConsumerConfig{Durable: "a", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour}, 20, 3)
		}},
	{name: "work queue", topic: "/move/queue", shrinks: true, cfg: func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
			publish(t, ctx, js, 50, numbered(subject))
			pulled(t, ctx, s, jetstream.ConsumerConfig{Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour}, 20, 3, 4)
		}},
	{name: "deduplication", topic: "/move/once", cfg: func(c *jetstream.StreamConfig) { c.Duplicates = 10 * time.Minute },
		fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
			publish(t, ctx, js, 20, func(i int) *client.Msg {
				m := numbered(subject)(i)
				m.Header = client.Header{client.MsgIdHdr: []string{fmt.Sprint(i)}}
				return m
			})
		}, then: func(t *testing.T, ctx context.Context, js jetstream.JetStream, _ jetstream.Stream, subject string) {
			if ack := must[*jetstream.PubAck](t)(js.Publish(ctx, subject, nil, jetstream.WithMsgID("7"))); !ack.Duplicate {
				t.Error("sent again, it was stored again")
			}
			if ack := must[*jetstream.PubAck](t)(js.Publish(ctx, subject, nil, jetstream.WithMsgID("new"))); ack.Sequence != 21 {
				t.Errorf("the next is %d", ack.Sequence)
			}
		}},
	{name: "large messages", topic: "/move/large", fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, subject string) {
		publish(t, ctx, js, 40, func(i int) *client.Msg {
			data := make([]byte, 900_000)
			for j := range data {
				data[j] = byte(j * (i + 1) >> 3)
			}
			return &client.Msg{Subject: subject, Data: data}
		})
	}},
}

// made is a shape's stream, filled, and its topic's record.
func (m mover) made(t *testing.T, shape shaped) (record []byte) {
	t.Helper()
	do(t, m.with(func(ctx context.Context, js jetstream.JetStream) error {
		cfg := jetstream.StreamConfig{Name: streamOf(shape.topic), Subjects: []string{m.subject(shape.topic)}}
		if shape.cfg != nil {
			shape.cfg(&cfg)
		}
		s, err := js.CreateStream(ctx, cfg)
		if err == nil && shape.fill != nil {
			shape.fill(t, ctx, js, s, cfg.Subjects[0])
		}
		record = fmt.Appendf(nil, `{"subjects":[%q]}`, cfg.Subjects[0])
		return err
	}))
	return record
}

// same compares two extents but for what each says of its own server.
func same(t *testing.T, what string, got, want moves.Extent) {
	t.Helper()
	got.Rests, want.Rests, got.Active, want.Active, got.Served, want.Served = "", "", 0, 0, false, false
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s:\n%s\nwant\n%s", what, g, w)
	}
}

func TestNATSMovesAStreamOfEachShape(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, target mover) {
		for _, shape := range shapes {
			t.Run(shape.name, func(t *testing.T) {
				ctx := bound(t)
				record := source.made(t, shape)
				before := must[moves.Extent](t)(source.Extent(ctx, shape.topic))
				if before.Shrinks != shape.shrinks {
					t.Errorf("shrinks: %v", before.Shrinks)
				}
				do(t, target.Accept(ctx, shape.topic, record, before, source.Peer()))
				for range 2 {
					sealed := must[moves.Extent](t)(source.Seal(ctx, shape.topic, "m1", false))
					same(t, "sealed", sealed, before)
				}
				metered := 0
				var copied moves.Extent
				for range 2 { // the second in the place of the first
					copied = must[moves.Extent](t)(target.Copy(ctx, shape.topic, "m1", source.Peer(), before, func(_ context.Context, n int) error { metered += n; return nil }))
				}
				same(t, "copied", copied, before)
				if metered == 0 {
					t.Error("nothing was metered")
				}
				if held := must[brokerapi.Held](t)(target.Topics(ctx)); !slices.Contains(held.Withdrawn, shape.topic) {
					t.Errorf("the copy is not withdrawn: %+v", held)
				}
				compared := must[moves.Content](t)(target.Compare(ctx, shape.topic, source.Peer(), before, free))
				if unread := compared.Observed != ""; compared.Differs != "" || unread != shape.shrinks || !unread && compared.Compared != before.Count || compared.Gone != 0 {
					t.Errorf("compared: %+v, of %d", compared, before.Count)
				}
				for range 2 {
					var served moves.Extent
					// JetStream may count the consumer that compared for a moment yet, and not list it: a move tries again.
					do(t, harness.Await(ctx, harness.Patience, "the resume", func(ctx context.Context) (_ bool, saw string) {
						var err error
						if served, err = target.Resume(ctx, shape.topic, "m1", record, &before); errors.Is(err, brokerapi.ErrRefused) {
							t.Fatal(err)
						}
						return err == nil, fmt.Sprint(err)
					}))
					same(t, "served", served, before)
				}
				if err := target.with(func(ctx context.Context, js jetstream.JetStream) error {
					s, err := js.Stream(ctx, streamOf(shape.topic))
					if err == nil && shape.then != nil {
						shape.then(t, ctx, js, s, s.CachedInfo().Config.Subjects[0])
					}
					return err
				}); err != nil {
					t.Error(err)
				}
				if err := target.Remove(ctx, shape.topic, "m1"); !errors.Is(err, brokerapi.ErrRefused) {
					t.Errorf("a stream that serves was removed: %v", err)
				}
				for range 2 {
					do(t, source.Remove(ctx, shape.topic, "m1"))
				}
				if held := must[brokerapi.Held](t)(source.Topics(ctx)); slices.Contains(slices.Concat(held.Serving, held.Withdrawn), shape.topic) {
					t.Errorf("the source still has it: %+v", held)
				}
			})
		}
	})
}

func TestNATSSealsBehindWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, _ mover) {
		const topic = "/move/busy"
		ctx := bound(t)
		do(t, source.Serve(ctx, topic, nil))
		for round := range 10 {
			stop, last := make(chan struct{}), make(chan uint64)
			for range 4 {
				go func() { // one message behind the other, and some at once
					var acknowledged uint64
					_ = source.with(func(ctx context.Context, js jetstream.JetStream) error {
						for {
							select {
							case <-stop:
								last <- acknowledged
								return nil
							default:
							}
							var sent []jetstream.PubAckFuture
							for range 32 {
								if f, err := js.PublishMsgAsync(&client.Msg{Subject: "move.busy", Data: make([]byte, 1000)}, jetstream.WithRetryAttempts(0)); err == nil {
									sent = append(sent, f)
								}
							}
							for _, f := range sent {
								select {
								case ack := <-f.Ok():
									acknowledged = max(acknowledged, ack.Sequence)
								case <-f.Err():
								}
							}
						}
					})
				}()
			}
			for must[moves.Extent](t)(source.Extent(ctx, topic)).Last < uint64(round+1)*500 {
			}
			id := fmt.Sprintf("m%d", round)
			sealed := must[moves.Extent](t)(source.Seal(ctx, topic, id, false))
			close(stop)
			for range 4 {
				if acknowledged := <-last; acknowledged > sealed.Last {
					t.Errorf("round %d: message %d was acknowledged, sealed was %d", round, acknowledged, sealed.Last)
				}
			}
			same(t, "stands", must[moves.Extent](t)(source.Extent(ctx, topic)), sealed)
			must[moves.Extent](t)(source.Resume(ctx, topic, id, nil, &sealed))
		}
	})
}

func TestNATSSealsByForceOnlyWhatIsRead(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, target mover) {
		const topic = "/move/read"
		ctx := bound(t)
		do(t, source.Serve(ctx, topic, nil))
		do(t, source.with(func(ctx context.Context, js jetstream.JetStream) error {
			c, err := js.CreateConsumer(ctx, streamOf(topic), jetstream.ConsumerConfig{Durable: "reader", AckPolicy: jetstream.AckExplicitPolicy})
			if err != nil {
				return err
			}
			it, err := c.Messages()
			if err != nil {
				return err
			}
			defer it.Stop()
			go func() { _, _ = it.Next() }()
			for must[moves.Extent](t)(source.Extent(ctx, topic)).Active == 0 {
			}
			if _, err := source.Seal(ctx, topic, "m1", false); !errors.Is(err, brokerapi.ErrRefused) || !strings.Contains(err.Error(), "consumers of it are at work (1)") {
				t.Errorf("sealed under a consumer: %v", err)
			}
			if _, err := js.Publish(ctx, "move.read", nil); err != nil {
				t.Errorf("a refused seal took the producers: %v", err)
			}
			sealed, err := source.Seal(ctx, topic, "m1", true)
			if err != nil {
				return err
			}
			must[moves.Extent](t)(target.Copy(ctx, topic, "m1", source.Peer(), sealed, free))
			for _, side := range []mover{source, target} { // each that can
				if err := side.with(func(ctx context.Context, js jetstream.JetStream) error {
					c := must[jetstream.Consumer](t)(js.Consumer(ctx, streamOf(topic), "reader"))
					if old := strings.HasPrefix(js.Conn().ConnectedServerVersion(), "2.9."); c.CachedInfo().Paused == old {
						t.Errorf("at %s the consumer is paused: %v", side.Name, !old)
					}
					return nil
				}); err != nil {
					return err
				}
			}
			must[moves.Extent](t)(target.Resume(ctx, topic, "m1", nil, &sealed))
			return nil
		}))
		if err := target.with(func(ctx context.Context, js jetstream.JetStream) error {
			c, err := js.Consumer(ctx, streamOf(topic), "reader")
			if err == nil && c.CachedInfo().Paused {
				err = errors.New("it is still paused")
			}
			return err
		}); err != nil {
			t.Errorf("the consumer at the target: %v", err)
		}
	})
}

// TestNATSMakesHalfACopyAnew ends copies in the midst: by the meter, with the sidecar, and with the server.
func TestNATSMakesHalfACopyAnew(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, target mover) {
		const topic = "/move/half"
		ctx := bound(t)
		do(t, source.Serve(ctx, topic, nil))
		do(t, source.with(func(ctx context.Context, js jetstream.JetStream) error {
			random := rand.New(rand.NewPCG(1, 2))
			publish(t, ctx, js, 80, func(int) *client.Msg {
				data := make([]byte, 100_000)
				for i := range data {
					data[i] = byte(random.Uint32())
				}
				return &client.Msg{Subject: "move.half", Data: data}
			})
			return nil
		}))
		sealed := must[moves.Extent](t)(source.Seal(ctx, topic, "m1", false))
		enough := errors.New("enough")
		half := func(b *nats.Broker) {
			t.Helper()
			told := 0
			if _, err := b.Copy(ctx, topic, "m1", source.Peer(), sealed, func(_ context.Context, n int) error {
				if told += n; told > 5_000_000 {
					return enough
				}
				return nil
			}); !errors.Is(err, enough) {
				t.Fatalf("half a copy: %v", err)
			}
		}
		half(target.Broker)
		half(target.Broker)
		if _, err := target.Resume(ctx, topic, "m1", nil, &sealed); !errors.Is(err, brokerapi.ErrRefused) {
			t.Errorf("half a copy was resumed: %v", err)
		}
		if held := must[brokerapi.Held](t)(target.Topics(ctx)); len(held.Serving)+len(held.Withdrawn) > 0 {
			t.Errorf("half a copy is a topic: %+v", held)
		}
		if err := target.Accept(ctx, topic, nil, sealed, source.Peer()); err != nil {
			t.Errorf("half a copy is in the way: %v", err)
		}
		// A sidecar that ends says nothing: the server waits some seconds for more, and a new one copies meanwhile.
		frozen, cancel := context.WithCancel(ctx)
		reached := make(chan struct{})
		gone := make(chan error, 1)
		other := opened(t, target.config())
		go func() {
			told := 0
			_, err := other.Copy(frozen, topic, "m1", source.Peer(), sealed, func(ctx context.Context, n int) error {
				if told += n; told > 5_000_000 {
					close(reached)
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
			gone <- err
		}()
		<-reached
		copied := must[moves.Extent](t)(target.Copy(ctx, topic, "m1", source.Peer(), sealed, free))
		same(t, "copied while another copy hangs", copied, sealed)
		cancel()
		<-gone
		same(t, "after the other has ended", must[moves.Extent](t)(target.Extent(ctx, topic)), sealed)
		do(t, target.Remove(ctx, topic, "m1"))
		half(target.Broker)
		target.Kill(t)
		target.Start(t)
		for b := (brokerapi.Broker)(target.Broker); health(ctx, b) != nil; {
		}
		same(t, "copied after a restart", must[moves.Extent](t)(target.Copy(ctx, topic, "m1", source.Peer(), sealed, free)), sealed)
		same(t, "resumed", must[moves.Extent](t)(target.Resume(ctx, topic, "m1", nil, &sealed)), sealed)
		compared := must[moves.Content](t)(target.Compare(ctx, topic, source.Peer(), sealed, free))
		if compared.Compared != 80 || compared.Differs != "" {
			t.Errorf("%+v", compared)
		}
	})
}

func TestNATSComparesEachMessage(t *testing.T) {
	t.Parallel()
	bin, err := harness.Build(harness.NATSServer)
	do(t, err)
	source, target := sides(t, bin, bin)
	for _, c := range []struct {
		name string
		cfg  func(*jetstream.StreamConfig)
		do   func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error // at the target, once it has resumed
		gone uint64
		want string
	}{
		{"appended", nil, func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
			_, err := js.Publish(ctx, "move.a.1", nil)
			return err
		}, 0, ""},
		{"gone at the front", nil, func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
			return s.Purge(ctx, jetstream.WithPurgeSequence(31))
		}, 30, ""},
		{"all gone", nil, func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error { return s.Purge(ctx) }, 100, ""},
		{"one is missing", nil, func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
			return s.DeleteMsg(ctx, 50)
		}, 1, `message 50 of "move.a.9" is at the source only`},
		{"one is missing of those that age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
			return s.DeleteMsg(ctx, 50)
		}, 1, `message 50 of "move.a.9" is at the source only`},
		{"overtaken by later ones of its subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 10 },
			func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
				for range 3 {
					if _, err := js.Publish(ctx, "move.a.5", nil); err != nil {
						return err
					}
				}
				return nil
			}, 3, ""},
		{"not overtaken", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 10 },
			func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
				return s.DeleteMsg(ctx, 50)
			}, 1, `message 50 of "move.a.9" is at the source only`},
		{"no consumer may be made", func(c *jetstream.StreamConfig) { c.MaxConsumers = 1 }, func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
			_, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "only"})
			return err
		}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			topic := "/move/" + strings.ReplaceAll(c.name, " ", "-")
			ctx := bound(t)
			shape := shaped{topic: topic, cfg: func(cfg *jetstream.StreamConfig) {
				cfg.Subjects = []string{"move.a.*"}
				if c.cfg != nil {
					c.cfg(cfg)
				}
			}, fill: func(t *testing.T, ctx context.Context, js jetstream.JetStream, s jetstream.Stream, _ string) {
				publish(t, ctx, js, 100, func(i int) *client.Msg { return numbered(fmt.Sprintf("move.a.%d", i%10))(i) })
			}}
			record := source.made(t, shape)
			sealed := must[moves.Extent](t)(source.Seal(ctx, topic, "m1", false))
			must[moves.Extent](t)(target.Copy(ctx, topic, "m1", source.Peer(), sealed, free))
			must[moves.Extent](t)(target.Resume(ctx, topic, "m1", record, &sealed))
			do(t, target.with(func(ctx context.Context, js jetstream.JetStream) error {
				s, err := js.Stream(ctx, streamOf(topic))
				if err == nil {
					err = c.do(ctx, js, s)
				}
				return err
			}))
			got := must[moves.Content](t)(target.Compare(ctx, topic, source.Peer(), sealed, free))
			if got.Differs != c.want || got.Gone != c.gone || got.Observed == "" && c.want == "" && got.Compared+got.Gone != 100 {
				t.Errorf("%+v, want %d gone, and %q", got, c.gone, c.want)
			}
			if unread := got.Observed != ""; unread != (c.name == "no consumer may be made") {
				t.Errorf("observed: %q", got.Observed)
			}
			if err := source.Remove(ctx, topic, "m1"); err != nil {
				t.Error(err)
			}
			if err := target.with(func(ctx context.Context, js jetstream.JetStream) error { return js.DeleteStream(ctx, streamOf(topic)) }); err != nil {
				t.Error(err)
			}
		})
	}
}
