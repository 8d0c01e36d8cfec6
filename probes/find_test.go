package probes

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheBrokersProcessIsChosenAmongThoseWithItsName(t *testing.T) {
	const yes, no, unseen = HoldingYes, HoldingNo, HoldingUnknown
	is := func(pid int, started uint64, port Holding) namesake {
		return namesake{ProcessView: ProcessView{Target: Target{pid, started}, Parent: 1}, port: port}
	}
	fork := func(of int, n namesake) namesake {
		n.Parent = of
		return n
	}
	a := Target{10, 100}
	fresh, dead := past{}, past{known: a, lived: 300}
	strict := func(p past) past { p.strict = true; return p }
	for _, row := range []struct {
		name  string
		past  past
		lives bool
		all   []namesake
		want  int // pid
		err   error
		after bool // a name alone proves nothing from here on
	}{
		{name: "none", err: ErrNoProcess},
		{name: "one, and the port is not seen", all: []namesake{is(11, 5, unseen)}, want: 11},
		{name: "one, and it holds the port", all: []namesake{is(11, 5, yes)}, want: 11},
		{name: "one, and it does not hold the port", all: []namesake{is(11, 5, no)}, err: ErrNoProcess},
		{name: "two, one holds the port", all: []namesake{is(11, 5, no), is(12, 6, yes)}, want: 12, after: true},
		{name: "two, one holds the port, the other is not seen", all: []namesake{is(11, 5, unseen), is(12, 6, yes)}, want: 12, after: true},
		{name: "two, none holds the port", all: []namesake{is(11, 5, no), is(12, 6, no)}, err: ErrNoProcess, after: true},
		{name: "two, and the port is not seen", all: []namesake{is(11, 5, unseen), is(12, 6, unseen)}, err: errUndecided, after: true},
		{name: "two, one does not hold the port, the other is not seen", all: []namesake{is(11, 5, no), is(12, 6, unseen)}, err: errUndecided, after: true},
		{name: "two, both hold the port", all: []namesake{is(11, 5, yes), is(12, 6, yes)}, err: errUndecided, after: true},
		{name: "both hold the port, one is the other's child", all: []namesake{is(11, 5, yes), fork(11, is(12, 6, yes))}, want: 11},
		{name: "a script of that name, and its child at the port", all: []namesake{is(11, 5, no), fork(11, is(12, 6, yes))}, want: 12},
		{name: "a child was just forked, and the port is not seen", all: []namesake{is(11, 5, unseen), fork(11, is(12, 6, unseen))}, err: errUndecided},
		{name: "several were seen before, and the port is not seen", past: strict(fresh), all: []namesake{is(11, 5, unseen)}, err: errUndecided, after: true},

		{name: "the known one lives, whoever holds the port", past: dead, lives: true, all: []namesake{{ProcessView: ProcessView{Target: a}, port: no}, is(12, 600, yes)}, want: 10, after: true},
		{name: "the known one lives, under another name", past: dead, lives: true, want: 10},
		{name: "the known one has ended, one that ran beside it holds the port", past: dead, all: []namesake{is(12, 200, yes)}, want: 12},
		{name: "the known one has ended, one that ran beside it is not seen", past: dead, all: []namesake{is(12, 200, unseen)}, err: ErrNoProcess},
		{name: "the known one has ended, one started when it may have run, and holds the port", past: dead, all: []namesake{is(12, 350, yes)}, want: 12},
		{name: "the known one has ended, one started when it may have run, and is not seen", past: dead, all: []namesake{is(12, 350, unseen)}, want: 12},
		{name: "the end is seen only now, one started before that and is not seen", past: dead, all: []namesake{is(12, 350, unseen)}, want: 12},
		{name: "the known one has ended, one started after that and is not seen", past: dead, all: []namesake{is(12, 400, unseen)}, want: 12},
		{name: "the known one has ended, one started after that and does not hold the port", past: dead, all: []namesake{is(12, 450, no)}, err: errUndecided},
		{name: "the known one has ended, one started after that beside a neighbour that ran before", past: dead, all: []namesake{is(12, 450, unseen), is(11, 200, unseen)}, err: errUndecided, after: true},
		{name: "the known one has ended, one is at the port beside a neighbour that ran before", past: dead, all: []namesake{is(12, 450, yes), is(11, 200, no)}, want: 12, after: true},
		{name: "it was judged to be another's, and is alone", past: past{not: Target{12, 450}}, all: []namesake{is(12, 450, unseen)}, err: ErrNoProcess},
		{name: "another one was judged to be another's", past: past{not: Target{11, 90}}, all: []namesake{is(12, 450, unseen)}, want: 12},
		{name: "several were seen before, and is not seen now", past: strict(dead), all: []namesake{is(12, 450, unseen)}, err: errUndecided, after: true},
		{name: "of an earlier sidecar, ended, and one that is older", past: past{known: a, lived: 100}, all: []namesake{is(12, 50, unseen)}, err: ErrNoProcess},
		{name: "of an earlier sidecar, ended, and one that is younger", past: past{known: a, lived: 100}, all: []namesake{is(12, 150, unseen)}, want: 12},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := row.past
			got, err := p.choose(row.all, row.lives, 500)
			if got.Pid != row.want || !errors.Is(err, row.err) || p.strict != row.after {
				t.Errorf("%v, %v; a name alone proves nothing: %t", got, err, p.strict)
			}
			if err == nil && p.known != got {
				t.Errorf("noted %+v", p)
			}
		})
	}
}

// server is a process with the name that holds the socket at the address; port 0: any.
func server(t *testing.T, name, addr string) (*exec.Cmd, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return sleeper(t, name, file), l.Addr().(*net.TCPAddr).AddrPort()
}

func end(c *exec.Cmd) {
	_ = c.Process.Kill()
	_ = c.Wait()
}

func TestOfSeveralProcessesWithTheNameTheOneAtTheAdminPortIsTheBroker(t *testing.T) {
	name := uniqueName(t)
	broker, at := server(t, "/opt/broker/"+name, "127.0.0.1:0")
	beside, _ := server(t, name, "127.0.0.1:0")
	admin := func() ([]netip.AddrPort, error) { return []netip.AddrPort{at}, nil }
	f := &Finder{Name: name, Admin: admin}
	find := func(f *Finder, what string, want *exec.Cmd, words ...string) {
		t.Helper()
		v, err := f.Find()
		if want == nil && err == nil || want != nil && (err != nil || v.Pid != want.Process.Pid) {
			t.Fatalf("%s: %+v, %v", what, v, err)
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, without %q", what, err, w)
			}
		}
	}
	find(f, "the port tells", broker)
	find(&Finder{Name: name}, "no port to go by", nil, "several processes are called", strconv.Itoa(broker.Process.Pid), strconv.Itoa(beside.Process.Pid), ": set --broker-pid-file")
	find(&Finder{Name: name, Admin: func() ([]netip.AddrPort, error) { return nil, errors.New("no such host") }}, "its address is not known", nil, "no such host")
	if !(&Finder{Name: name, Admin: func() ([]netip.AddrPort, error) { return nil, errors.New("no such host") }}).Clues().Strict {
		t.Error("its address is not known, and a name alone would do in another process")
	}

	clues := f.Clues()
	if len(clues.Admin) != 1 || clues.Admin[0] != at || !clues.Strict {
		t.Errorf("%+v", clues)
	}
	there := &Finder{Name: name}
	v, _ := f.Find()
	there.Expect(v.Target, clues)
	f.Saw(v.Target, v.Gone)
	end(broker)
	for what, f := range map[string]*Finder{"the one that knew it": f, "the one that was told": there, "one that knew nothing": {Name: name, Admin: admin}} {
		if _, err := f.Find(); what == "the one that was told" && errors.Is(err, errUndecided) {
			continue // that it ran beside the broker is not known there
		} else if !errors.Is(err, ErrNoProcess) || !strings.Contains(err.Error(), "start the broker, or set --broker-pid-file") {
			t.Errorf("the broker has ended, %s: %v", what, err)
		}
	}
	proxy, _ := server(t, "proxy", at.String())
	find(f, "somebody else holds the port", nil, "of that name there is "+strconv.Itoa(beside.Process.Pid)+", which")
	find(&Finder{Name: name, Admin: admin}, "somebody else holds the port, and nothing is known", beside)
	end(proxy)
	again, _ := server(t, name, at.String())
	find(f, "it is started again", again)
	find(there, "it is started again, as told", again)
}

// Where nobody sees who holds the port, only what ran beside the broker is known.
func TestWhoRanBesideTheBrokerIsNotTakenForItWhereThePortIsNotSeen(t *testing.T) {
	name := uniqueName(t)
	broker := sleeper(t, name)
	f := &Finder{Name: name}
	v, err := f.Find()
	if err != nil {
		t.Fatal(err)
	}
	beside := sleeper(t, name) // which no look by name sees beside it
	for tick := bootTicks(); bootTicks() <= tick+1; time.Sleep(time.Millisecond) {
	}
	f.Saw(v.Target, v.Gone)
	end(broker)
	f.Saw(v.Target, v.Gone)
	if v, err := f.Find(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("%+v, %v", v, err)
	}
	end(beside)
	if v, err := f.Find(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("%+v, %v", v, err)
	}
	again := sleeper(t, name)
	if v, err := f.Find(); err != nil || v.Pid != again.Process.Pid {
		t.Errorf("the next one: %+v, %v", v, err)
	}
}

// As where the broker's address comes up after its sidecar.
func TestTheWatchGoesOverFromAProcessThatIsNotTheBroker(t *testing.T) {
	name := uniqueName(t)
	beside, _ := server(t, name, "127.0.0.1:0")
	var at atomic.Pointer[netip.AddrPort]
	p := NewProcess(&Finder{Name: name, Admin: func() (all []netip.AddrPort, err error) {
		if a := at.Load(); a != nil {
			all = append(all, *a)
		}
		return all, nil
	}}, quiet())
	runIt(t, p.Run)
	until(t, p.Changes(), "the only one is watched", func() bool { return p.Snapshot().Pid == beside.Process.Pid })
	broker, addr := server(t, name, "127.0.0.1:0")
	at.Store(&addr)
	p.Finder.Forget(p.Snapshot().Target)
	await(t, p.Lost(), "the change")
	until(t, p.Changes(), "the broker is watched", func() bool { return p.Snapshot().Pid == broker.Process.Pid })
	if !p.Finder.Strict() {
		t.Error("a name alone would do again")
	}
}
