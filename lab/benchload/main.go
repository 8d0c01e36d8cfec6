// Command benchload measures how fast topics are loaded, beside the fastest that
// the broker's own client does it: a bare loop of jetstream.CreateStream with the
// same concurrency. Measured are the driver alone, and the reconciler of the
// sidecar on top of it, as it loads what etcd has assigned; that one decides.
//
// Each round starts one fresh nats-server with an empty data directory for each
// of the three. They load in turns, a slice of the topics at a time, and who is
// first changes from slice to slice: what else the machine does hits all alike. A
// ratio is the median over all turns, the rates are medians too. Exit code 1: the ratio of
// the reconciler is below -floor; 75: it is, but not without the time for which this process
// stood still in its turns. Figures of two machines do not compare.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/brokerapi/nats"
	"holdfast/standstill"
)

type settings struct {
	server      string
	rounds      int
	topics      int
	slice       int
	concurrency int
	floor       float64
}

func main() {
	var s settings
	flag.StringVar(&s.server, "nats-server", "", "nats-server binary; empty: build this module's")
	flag.IntVar(&s.rounds, "rounds", 2, "rounds, each with fresh servers")
	flag.IntVar(&s.topics, "topics", 5000, "topics of each loader in a round")
	flag.IntVar(&s.slice, "slice", 250, "topics a turn")
	flag.IntVar(&s.concurrency, "concurrency", 16, "loads under way at once")
	flag.Float64Var(&s.floor, "floor", 0.80, "smallest accepted ratio of the reconciler's rate to the bare loop's")
	flag.Parse()
	if s.rounds < 1 || s.topics < 1 || s.slice < 1 || s.concurrency < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "benchload: -rounds, -topics, -slice and -concurrency must be at least 1, and there are no arguments")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ratio, undisturbed, err := run(ctx, s)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "benchload:", err)
		os.Exit(1)
	case ratio >= s.floor:
		fmt.Printf("ok: at least %.2f\n", s.floor)
	case undisturbed >= s.floor:
		fmt.Printf("%s: %.2f is below %.2f; without the time for which this process stood still it is %.2f\n", standstill.Word, ratio, s.floor, undisturbed)
		os.Exit(standstill.ExitCode)
	default:
		fmt.Printf("FAIL: %.2f is below %.2f\n", ratio, s.floor)
		os.Exit(1)
	}
}

// loader loads topics that the broker does not have yet and returns when all are
// served. What has to be set up before the clock starts is done by its maker.
type loader func(ctx context.Context, topics []string, concurrency int) error

// contestants are compared: the first is the measure, the last decides.
var contestants = [...]struct {
	name string
	open func(ctx context.Context, s *server) (load loader, done func(), err error)
}{
	{"bare loop of jetstream.CreateStream", openBare},
	{"holdfast's driver", openDriver},
	{"holdfast's reconciler", openReconciler},
}

// figures has one for each contestant.
type figures [len(contestants)]float64

// turn is the rates of one turn, in topics per second.
type turn struct {
	rates       figures
	undisturbed float64 // that of the last one, had this process not stood still in its time
}

func openBare(_ context.Context, s *server) (loader, func(), error) {
	nc, err := client.Connect("nats://" + s.admin)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("open JetStream: %w", err)
	}
	load := func(ctx context.Context, topics []string, concurrency int) error {
		return each(topics, concurrency, func(topic string) error {
			_, err := js.CreateStream(ctx, jetstream.StreamConfig{
				Name:     "bare-default-" + topic[len(namespace):], // as long as Holdfast's own
				Subjects: []string{"default." + topic[len(namespace):]},
			})
			return err
		})
	}
	return load, nc.Close, nil
}

// healthyBroker is a driver that has found its server.
func healthyBroker(ctx context.Context, s *server) (*nats.Broker, error) {
	b, err := nats.New(nats.Config{AdminURL: "nats://" + s.admin, MonitorURL: "http://" + s.monitor})
	if err != nil {
		return nil, err
	}
	if _, err := b.Probe(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func openDriver(ctx context.Context, s *server) (loader, func(), error) {
	b, err := healthyBroker(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	load := func(ctx context.Context, topics []string, concurrency int) error {
		return each(topics, concurrency, func(topic string) error { return b.Serve(ctx, topic, nil) })
	}
	return load, func() { b.Close() }, nil
}

const namespace = "/default/"

// each calls do for every topic, with concurrency calls under way at once.
func each(topics []string, concurrency int, do func(string) error) error {
	var next atomic.Int64
	errs := make([]error, concurrency)
	var wg sync.WaitGroup
	for w := range concurrency {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(topics) || errs[w] != nil {
					return
				}
				if err := do(topics[i]); err != nil {
					errs[w] = fmt.Errorf("load %s: %w", topics[i], err)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// run returns the ratio that decides, and what it had been had this process not stood still.
func run(ctx context.Context, s settings) (ratio, undisturbed float64, err error) {
	dir, err := os.MkdirTemp("", "benchload")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	defer standstill.Watch()()
	if s.server == "" {
		s.server = filepath.Join(dir, "nats-server")
		out, err := exec.CommandContext(ctx, "go", "build", "-o", s.server, "github.com/nats-io/nats-server/v2").CombinedOutput()
		if err != nil {
			return 0, 0, fmt.Errorf("build nats-server: %w: %s", err, out)
		}
	}
	topics := make([]string, s.topics)
	for i := range topics {
		topics[i] = fmt.Sprintf("%stopic-%06d", namespace, i)
	}
	var rates, ratios [len(contestants)][]float64
	var alone []float64
	for n := range s.rounds {
		turns, err := round(ctx, s, filepath.Join(dir, fmt.Sprint(n)), topics)
		if err != nil {
			return 0, 0, err
		}
		for _, turn := range turns {
			for i := range contestants {
				rates[i] = append(rates[i], turn.rates[i])
				ratios[i] = append(ratios[i], turn.rates[i]/turn.rates[0])
			}
			alone = append(alone, turn.undisturbed/turn.rates[0])
		}
	}
	for i, c := range contestants {
		ratio = median(ratios[i])
		fmt.Printf("median   %-36s %8.0f topics/s, ratio %.2f\n", c.name, median(rates[i]), ratio)
	}
	fmt.Printf("ratio    %.2f, the median of %d turns (%d rounds of %d topics, %d a turn, concurrency %d)\n",
		ratio, len(ratios[0]), s.rounds, s.topics, s.slice, s.concurrency)
	return ratio, median(alone), nil
}

// round is one fresh server for each contestant.
func round(ctx context.Context, s settings, dir string, topics []string) (turns []turn, err error) {
	var servers [len(contestants)]*server
	var loads [len(contestants)]loader
	for i, c := range contestants {
		srv, err := startServer(ctx, s.server, filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return nil, err
		}
		defer srv.stop()
		load, done, err := c.open(ctx, srv)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", c.name, err)
		}
		defer done()
		servers[i], loads[i] = srv, load
	}
	var spent [len(contestants)]time.Duration
	for slice := range slices.Chunk(topics, s.slice) {
		var now turn
		for k := range contestants {
			i := (k + len(turns)) % len(contestants)
			start := time.Now()
			if err := loads[i](ctx, slice, s.concurrency); err != nil {
				return nil, fmt.Errorf("%s: %w", contestants[i].name, err)
			}
			took := time.Since(start)
			spent[i] += took
			now.rates[i] = float64(len(slice)) / took.Seconds()
			if i == len(contestants)-1 {
				now.undisturbed = float64(len(slice)) / (took - standstill.For(start, start.Add(took))).Seconds()
			}
		}
		turns = append(turns, now)
	}
	for i, c := range contestants {
		if err := servers[i].holds(ctx, len(topics)); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("round    %-36s %8.0f topics/s over %d topics\n", c.name, float64(len(topics))/spent[i].Seconds(), len(topics))
	}
	return turns, nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// server is one nats-server process with JetStream.
type server struct {
	cmd            *exec.Cmd
	dir            string
	admin, monitor string
}

func startServer(ctx context.Context, bin, dir string) (*server, error) {
	s := &server{dir: dir}
	var ports [2]string
	for i, address := range []*string{&s.admin, &s.monitor} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		*address = l.Addr().String()
		_, ports[i], _ = net.SplitHostPort(*address)
		l.Close()
	}
	s.cmd = exec.Command(bin, "-a", "127.0.0.1", "-p", ports[0], "-m", ports[1], "-n", "bench", "-js", "-sd", dir)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.answers(ctx)
		if err == nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			s.stop()
			return nil, fmt.Errorf("nats-server does not answer: %w", err)
		case <-tick.C:
		}
	}
}

func (s *server) answers(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.monitor+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("healthz answered %s", resp.Status)
	}
	return nil
}

// holds checks that the server has exactly so many streams: a rate counts only
// for work that was done.
func (s *server) holds(ctx context.Context, want int) error {
	nc, err := client.Connect("nats://" + s.admin)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	info, err := js.AccountInfo(ctx)
	if err != nil {
		return fmt.Errorf("count streams: %w", err)
	}
	if info.Streams != want {
		return fmt.Errorf("the server holds %d streams, want %d", info.Streams, want)
	}
	return nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}
