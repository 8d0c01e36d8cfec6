package memory_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

func TestAServerGoesOnFromItsContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := memory.New(memory.Config{})
		id, _ := register(t, over(t, first, nil), "b1", 10*time.Second)
		time.Sleep(4 * time.Second)
		content := first.Content()
		second, err := memory.Restore(memory.Config{}, content)
		if err != nil {
			t.Fatal(err)
		}
		if again := second.Content(); !reflect.DeepEqual(again, content) {
			t.Errorf("from %+v\nto %+v", content, again)
		}
		c := over(t, second, nil)
		if other := lease(t, c, time.Minute); other == id {
			t.Error("a lease's id was granted twice")
		}
		told := make(chan cluster.Update, 4)
		background(t, func(ctx context.Context) {
			_ = c.Follow(ctx, cluster.Target{Key: c.Keys().Registration("b1")}, func(u cluster.Update) { told <- u }, func(error) {})
		})
		if u := <-told; !u.Full || len(u.Puts) != 1 {
			t.Errorf("listed %+v", u)
		}
		background(t, func(ctx context.Context) { _ = second.Run(ctx) })
		began := time.Now()
		if u := <-told; len(u.Deletes) != 1 || time.Since(began) != 6*time.Second {
			t.Errorf("after %v: %+v; want the deadline that the lease had", time.Since(began), u)
		}
	})
}

func TestContentThatNoServerCanHaveIsRefused(t *testing.T) {
	good := func() memory.Content {
		s := memory.New(memory.Config{})
		c := over(t, s, nil)
		register(t, c, "b1", time.Minute)
		return s.Content()
	}
	if _, err := memory.Restore(memory.Config{}, good()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		spoil func(*memory.Content)
	}{
		{"empty", func(c *memory.Content) { *c = memory.Content{} }},
		{"no revision", func(c *memory.Content) { c.Revision = 0 }},
		{"a key from later", func(c *memory.Content) { c.Keys[0].ModRevision = c.Revision + 1 }},
		{"a deleted key", func(c *memory.Content) { c.Keys[0].Version = 0 }},
		{"a key twice", func(c *memory.Content) { c.Keys = append(c.Keys, c.Keys[0]) }},
		{"a key without a name", func(c *memory.Content) { c.Keys[0].Key = "" }},
		{"an unknown lease", func(c *memory.Content) { c.Keys[0].Lease = 7 }},
		{"a lease twice", func(c *memory.Content) { c.Leases = append(c.Leases, c.Leases[0]) }},
		{"a lease without an end", func(c *memory.Content) { c.Leases[0].Deadline = time.Time{} }},
		{"ids that start again", func(c *memory.Content) { c.LastID = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			content := good()
			c.spoil(&content)
			if _, err := memory.Restore(memory.Config{}, content); err == nil {
				t.Error("taken")
			}
		})
	}
}

func TestForgettingKeepsWhatIsThere(t *testing.T) {
	s := memory.New(memory.Config{})
	c := over(t, s, nil)
	register(t, c, "b1", time.Minute)
	for range 100 {
		seen, err := c.Snapshot(t.Context(), "b1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.PutState(t.Context(), "b1", cluster.StateWrite{Mode: cluster.ModeActive}, seen.StateRevision); err != nil {
			t.Fatal(err)
		}
		s.Forget(10)
	}
	before := s.Content()
	s.Forget(10)
	if after := s.Content(); !reflect.DeepEqual(after, before) || len(after.Keys) != 4 {
		t.Errorf("from %+v\nto %+v", before, after)
	}
}
