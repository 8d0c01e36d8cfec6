package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// calling is a broker that calls itself so.
type calling struct {
	stillBroker
	name   string
	untold bool
}

func (b calling) Probe(context.Context) (brokerapi.Report, error) {
	if b.untold {
		return brokerapi.Report{Name: b.name}, nil
	}
	return brokerapi.Report{Name: b.name, Instance: "a"}, nil
}

// A broker that does not tell which process it is goes by what is known of it.
func TestABrokerThatDoesNotTellItsInstanceIsNamedByItsProcess(t *testing.T) {
	i := newIdentityCheck(calling{name: "n1", untold: true}, natsDefaults(), "")
	var watched process.Target
	var ends int64
	i.process = func() (process.Target, int64) { return watched, ends }
	goesBy := func(want string) {
		t.Helper()
		i.forget()
		err := i.check(t.Context())
		if who, _ := i.get(); err != nil || !strings.HasPrefix(who.Instance, want) {
			t.Errorf("%q, %v; want %q", who.Instance, err, want)
		}
	}
	goesBy("seen")
	watched = process.Target{Pid: 7, StartTicks: 100}
	goesBy("process-7-100")
	watched = process.Target{}
	goesBy("process-7-100")
	watched = process.Target{Pid: 8, StartTicks: 200}
	goesBy("process-8-200")
	watched, ends = process.Target{}, 1
	goesBy("seen-")
}

func TestABrokersOwnNameIsCheckedAsTheFlagIs(t *testing.T) {
	for name, flaw := range map[string]string{
		"n1": "", "söder": "", "10.0.0.1:8080": "", "n 1": "",
		"eu/n1":         "holds a slash, which separates keys in etcd",
		"n1 ":           "starts or ends with a space",
		"n1\nn2":        "holds a character that cannot be shown",
		"\x1b[31mn1":    "holds a character that cannot be shown",
		"n1\u202e":      "holds a character that cannot be shown",
		"n1\u009b31m n": "holds a character that cannot be shown",
	} {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			a := built(t)
			a.cfg.BrokerAdmin = "nats://10.0.0.1:4222"
			a.identity = newIdentityCheck(calling{name: name}, a.cfg, "")
			err := a.identity.check(t.Context())
			if _, id := a.identity.get(); flaw == "" && (err != nil || id != name) || flaw != "" && id != "" {
				t.Errorf("it goes by %q: %v", id, err)
			}
			fatal := a.identity.fatal()
			if flaw == "" {
				if fatal != nil {
					t.Errorf("refused: %v", fatal)
				}
			} else if want := fmt.Sprintf("--broker-id: required, because the broker's own name cannot be its id: the broker at nats://10.0.0.1:4222 calls itself %q, and that %s: set --broker-id, ", name, flaw); fatal == nil || !strings.HasPrefix(fatal.Error(), want) {
				t.Errorf("got  %v\nwant %s", fatal, want)
			}
			if flaw != "" {
				var exit *control.ExitError
				if err := a.step(); !errors.As(err, &exit) || exit.Code != control.ExitUsage {
					t.Errorf("the sidecar goes on: %v", err)
				}
				a.cfg.BrokerID = "n1"
				a.identity = newIdentityCheck(calling{name: name}, a.cfg, "")
				if err := a.identity.check(t.Context()); err != nil {
					t.Errorf("with --broker-id: %v", err)
				}
			}
			_, err = config.Load(config.Sources{Flags: map[string][]string{"driver": {"nats"}, "etcd-endpoints": {"http://e:2379"}, "broker-admin": {"nats://b:4222"}, "broker-id": {name}}})
			if want := fmt.Sprintf("--broker-id %q: %s: use another name", name, flaw); flaw == "" && err != nil || flaw != "" && (err == nil || err.Error() != want) {
				t.Errorf("the flag: got  %v\nwant %s", err, want)
			}
		})
	}
}

// refusing is a broker that lives and does not talk to us.
type refusing struct {
	calling
	says error // of who it is; nil: it says that
}

func (b refusing) Probe(ctx context.Context) (who brokerapi.Report, err error) {
	if b.says == nil {
		who, _ = b.calling.Probe(ctx)
	}
	return who, fmt.Errorf("full: %w", brokerapi.ErrUnseen)
}

func TestABrokerThatRefusesUsIsTheOneThatWasRegistered(t *testing.T) {
	mute := errors.New("full")
	for _, tt := range []struct {
		name     string
		says     error
		expected string
		instance string // that was registered
		lives    bool
		want     bool
	}{
		{"it says so", nil, "n1", "a", false, true},
		{"its process lives", mute, "n1", "a", true, true},
		{"nobody knows", mute, "n1", "a", false, false},
		{"it is another process", nil, "n1", "b", true, false},
		{"nothing was registered", nil, "", "", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newIdentityCheck(refusing{calling{name: "n1"}, tt.says}, natsDefaults(), tt.expected)
			i.lives = func() (string, bool) { return tt.instance, tt.lives }
			var unseen *probes.Unseen
			if err := i.check(t.Context()); !errors.As(err, &unseen) || unseen.Stands != tt.want {
				t.Errorf("%v: it stands: %v, want %v", err, unseen.Stands, tt.want)
			}
			if who, id := i.get(); (id == "n1" && who.Instance == tt.instance) != tt.want {
				t.Errorf("%+v goes by %q", who, id)
			}
		})
	}
}
