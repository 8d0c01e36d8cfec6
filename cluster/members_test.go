package cluster

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"holdfast/cluster/memory"
)

// frozen is a connection whose first stream is never answered.
type frozen struct {
	grpc.ClientConnInterface
	thawed atomic.Bool
}

func (f *frozen) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if f.thawed.CompareAndSwap(false, true) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.ClientConnInterface.NewStream(ctx, d, method, opts...)
}

// Nobody asks it any more, and its request is given up once another endpoint has answered.
func TestAnEndpointThatWasLeftForItsSilenceIsNotUp(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := Over(Config{Endpoints: []string{"a", "b"}}, &frozen{ClientConnInterface: memory.New(memory.Config{}).Conn(nil)}, nil)
			defer c.Close()
			id, _, err := c.Grant(t.Context(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			l, left := &Line{c}, c.at
			ctx, giveUp := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); _, _ = l.KeepAlive(ctx, id, false) }()
			time.Sleep(readPatience / 2)
			if _, err := l.KeepAlive(t.Context(), id, fresh); err != nil {
				t.Fatal(err)
			}
			giveUp()
			<-done
			for i, e := range l.Endpoints() {
				if silent := i == left && fresh; e.Up == silent || fresh && e.InUse == silent {
					t.Errorf("fresh %t: endpoint %d is %+v", fresh, i, e)
				}
			}
			time.Sleep(remembered + 1)
			if !l.Endpoints()[left].Up {
				t.Error("its silence is not forgotten")
			}
		})
	}
}
