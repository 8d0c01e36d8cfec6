package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var dawn = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// told is what is known of an endpoint that was asked and answered at the given seconds:
// negative ones are failures.
func told(seconds ...int) (k known) {
	for _, sec := range seconds {
		at := dawn.Add(time.Duration(max(sec, -sec)) * time.Second)
		k.asked = at
		if sec < 0 {
			k.fail(at, false)
		} else {
			k.answered()
		}
	}
	return k
}

func after(seconds float64) time.Time { return dawn.Add(time.Duration(seconds * float64(time.Second))) }

func TestAnEndpointIsDownForAWhileAfterItFailed(t *testing.T) {
	for _, c := range []struct {
		name  string
		known known
		at    float64
		want  bool
	}{
		{"never asked", known{}, 10, true},
		{"asked, no answer yet", known{asked: dawn}, 10, true},
		{"answered long ago", told(10), 10000, true},
		{"failed", told(10, -11), 11, false},
		{"failed five minutes ago", told(-11), 311, false},
		{"failed longer ago: nobody knows", told(-11), 312, true},
		{"failed again meanwhile", told(-11, -300), 312, false},
		{"answered again", told(-10, 11), 11, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.known.up(after(c.at)); got != c.want {
				t.Errorf("up is %v, want %v", got, c.want)
			}
		})
	}
}

func TestOutcomesAreNewsWhenTheyChange(t *testing.T) {
	var k known
	if k.answered() || !k.fail(dawn, false) || k.fail(dawn, true) || !k.answered() || k.answered() {
		t.Error("news is the first failure, and the first answer after one")
	}
}

func TestTheNextConnectionGoesToTheNextEndpointThatDidNotFail(t *testing.T) {
	for _, c := range []struct {
		name  string
		known []known
		avoid int // -1: none
		start int
		want  int
	}{
		{"all unknown: where the line starts", make([]known, 3), -1, 2, 2},
		{"the next in turn", []known{{}, {}, told(-10)}, -1, 2, 0},
		{"one works", []known{told(-10), told(-11), told(5)}, -1, 0, 2},
		{"all failed: the one that was left alone for longest", []known{told(-12), told(-11), told(-13)}, -1, 0, 1},
		{"the avoided one is the best", []known{told(-10), told(10), told(-9)}, 1, 0, 2},
		{"only the avoided one", []known{told(10)}, 0, 0, 0},
		{"a failure is forgotten", []known{told(-10), {asked: after(400), failed: after(400)}}, -1, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := after(14)
			if c.name == "a failure is forgotten" {
				at = after(400)
			}
			if got := choose(c.known, func(i int) bool { return i == c.avoid }, c.start, at); got != c.want {
				t.Errorf("endpoint %d, want %d", got, c.want)
			}
		})
	}
}

func TestOnlyAMemberWithALeaderAnswersWell(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want judgement
	}{
		{"an answer", nil, succeeded},
		{"no such lease", rpctypes.ErrGRPCLeaseNotFound, succeeded},
		{"no space", rpctypes.ErrGRPCNoSpace, succeeded},
		{"wrong password", fmt.Errorf("authenticate: %w", rpctypes.ErrAuthFailed), succeeded},
		{"no leader", rpctypes.ErrGRPCNoLeader, failed},
		{"leader lost", rpctypes.ErrGRPCTimeoutDueToLeaderFail, failed},
		{"timeout in etcd", rpctypes.ErrGRPCTimeout, failed},
		{"refused", status.Error(codes.Unavailable, "connection refused"), failed},
		{"certificate refused", status.Error(codes.Unavailable, handshakeRefused), failed},
		{"our patience ended", status.FromContextError(context.DeadlineExceeded).Err(), failed},
		{"our patience ended, seen here", context.DeadlineExceeded, failed},
		{"our patience ended, seen by an old member", status.Error(codes.Unknown, "context deadline exceeded"), failed},
		{"given up here", context.Canceled, nothing},
		{"given up here, seen by gRPC", status.FromContextError(context.Canceled).Err(), nothing},
		{"never sent", errors.New("read password file"), nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := judge(c.err); got != c.want {
				t.Errorf("judged %d, want %d", got, c.want)
			}
		})
	}
}

func TestAnEndpointGivenTwiceCountsOnce(t *testing.T) {
	l, err := OpenLine(Config{Endpoints: []string{"http://a:1", "http://b:1", "http://a:1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := l.Endpoints(); len(got) != 2 || got[0].URL != "http://a:1" || got[1].URL != "http://b:1" {
		t.Errorf("%+v", got)
	}
}
