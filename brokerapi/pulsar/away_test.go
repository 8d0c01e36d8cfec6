package pulsar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/brokerapi"
)

const policiesPath = "/admin/v2/clusters/cl/namespaceIsolationPolicies"

// isolating is the part of a cluster that keeps brokers away, as 4.0.7 answered on 2026-11-23.
type isolating struct {
	mu      sync.Mutex
	brokers []string
	list    map[string]json.RawMessage // nil: there never was one
	refuses int                        // the status of every change; 0: it is made
	wrote   []string
}

func (c *isolating) answers() map[string]http.HandlerFunc {
	say := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	change := func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		name := strings.TrimPrefix(r.URL.Path, policiesPath+"/")
		c.wrote = append(c.wrote, r.Method+" "+name)
		if c.refuses != 0 {
			say(w, c.refuses, map[string]string{"reason": "no"})
			return
		}
		if c.list == nil {
			c.list = map[string]json.RawMessage{}
		}
		if r.Method == http.MethodDelete {
			delete(c.list, name)
		} else {
			body, _ := io.ReadAll(r.Body)
			c.list[name] = body
		}
		w.WriteHeader(http.StatusNoContent)
	}
	set := map[string]http.HandlerFunc{
		"/admin/v2/brokers/cl": func(w http.ResponseWriter, _ *http.Request) {
			c.mu.Lock()
			defer c.mu.Unlock()
			say(w, http.StatusOK, c.brokers)
		},
		policiesPath: func(w http.ResponseWriter, _ *http.Request) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.list == nil {
				say(w, http.StatusNotFound, map[string]string{"reason": "NamespaceIsolationPolicies for cluster cl does not exist"})
				return
			}
			say(w, http.StatusOK, c.list)
		},
	}
	for _, host := range []string{"p1", "p2", "p3"} {
		set[policiesPath+"/holdfast-drained-"+host] = change
	}
	return set
}

// wants checks what was written since the last time.
func (c *isolating) wants(t *testing.T, when string, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.wrote, want) {
		t.Errorf("%s: wrote %q, want %q", when, c.wrote, want)
	}
	c.wrote = nil
}

func (c *isolating) broker(t *testing.T, id string) *Broker {
	t.Helper()
	return answering(t, c.answers(), func(cfg *Config) { cfg.Advertised = id })
}

func flaw(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func primary(patterns ...string) json.RawMessage {
	text, _ := json.Marshal(map[string]any{"namespaces": []string{"a/b"}, "primary": patterns, "secondary": []string{}})
	return text
}

const (
	setP1, removeP1 = "POST holdfast-drained-p1", "DELETE holdfast-drained-p1"
	nobodyElse      = "bundles may come back: no other broker of the cluster takes any"
)

func TestADrainedBrokerIsKeptAwayUntilItIsActive(t *testing.T) {
	c := &isolating{brokers: []string{"p1:8080", "p2:8080"}}
	b := c.broker(t, "p1:8080")
	for range 3 {
		if err := b.keepAway(t.Context(), true); err != nil {
			t.Error(err)
		}
	}
	c.wants(t, "drained", setP1)
	// What 4.0.7 took and answers with, but for the order of its names.
	const want = `{"namespaces":["holdfast/drained-p1"],"primary":["p1"],"secondary":[],"auto_failover_policy":` +
		`{"policy_type":"min_available","parameters":{"min_limit":"1","usage_threshold":"100"}},"unload_scope":"none"}`
	if got := string(c.list["holdfast-drained-p1"]); got != want {
		t.Errorf("policy %s, want %s", got, want)
	}
	for range 3 {
		if err := b.keepAway(t.Context(), false); err != nil {
			t.Error(err)
		}
	}
	c.wants(t, "active", removeP1)
}

func TestWhenThereIsNoPolicy(t *testing.T) {
	ours := func() json.RawMessage { return policyOf("p1") }
	for _, row := range []struct {
		name    string
		brokers []string
		list    map[string]json.RawMessage
		flaw    string
		wrote   []string
	}{
		{"it is the last broker", []string{"p1:8080"}, nil, nobodyElse, nil},
		{"it became the last", []string{"p1:8080"}, map[string]json.RawMessage{"holdfast-drained-p1": ours()}, nobodyElse, []string{removeP1}},
		{"the other one is drained", []string{"p1:8080", "p2:8080"}, map[string]json.RawMessage{"holdfast-drained-p2": primary("p2")}, nobodyElse, nil},
		{"both were drained at once, and this is the first", []string{"p2:8080", "p1:8080"},
			map[string]json.RawMessage{"holdfast-drained-p1": ours(), "holdfast-drained-p2": primary("p2")}, nobodyElse, []string{removeP1}},
		{"the others serve namespaces of their own", []string{"p1:8080", "p2:8080", "p3:8080"}, map[string]json.RawMessage{"theirs": primary("p[23]")}, nobodyElse, nil},
		{"a pattern cannot be read", []string{"p1:8080", "p2:8080"}, map[string]json.RawMessage{"theirs": primary("p(?<!x)2")}, nobodyElse, nil},
		{"a policy cannot be read", []string{"p1:8080", "p2:8080"}, map[string]json.RawMessage{"theirs": json.RawMessage(`{"primary":7}`)}, nobodyElse, nil},
		{"another broker is on the host", []string{"p1:8080", "p1:8081", "p2:8080"}, nil,
			"bundles may come back: a policy names hosts, and would keep them away from p1:8081 too", nil},
		{"one came to the host", []string{"p1:8080", "p1:8081", "p2:8080"}, map[string]json.RawMessage{"holdfast-drained-p1": ours()},
			"bundles may come back: a policy names hosts, and would keep them away from p1:8081 too", []string{removeP1}},
		{"namespaces are this broker's", []string{"p1:8080", "p2:8080"}, map[string]json.RawMessage{"theirs": primary("p1")}, "", []string{setP1}},
		{"another host has the name in its own", []string{"p1:8080", "p1x:8080"}, nil, "", []string{setP1}},
		{"a pattern matches a part of a host", []string{"p1:8080", "p2:8080"}, map[string]json.RawMessage{"theirs": primary("p")}, "", []string{setP1}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &isolating{brokers: row.brokers, list: row.list}
			b := c.broker(t, "p1:8080")
			for range 2 {
				if got := flaw(b.keepAway(t.Context(), true)); got != row.flaw {
					t.Errorf("%q, want %q", got, row.flaw)
				}
			}
			c.wants(t, row.name, row.wrote...)
		})
	}
}

// TestAPolicyThatIsOnItsWayIsRemovedWhenTheBrokerIsActivated: it would come into force after a
// removal that did not wait for it.
func TestAPolicyThatIsOnItsWayIsRemovedWhenTheBrokerIsActivated(t *testing.T) {
	c := &isolating{brokers: []string{"p1:8080", "p2:8080"}}
	ctx, activate := context.WithCancel(t.Context())
	answers := c.answers()
	change := answers[policiesPath+"/holdfast-drained-p1"]
	var underway sync.WaitGroup
	activated := make(chan struct{})
	answers[policiesPath+"/holdfast-drained-p1"] = func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			underway.Add(1)
			defer underway.Done()
			body, _ := io.ReadAll(r.Body) // or the server does not see that nobody waits
			r.Body = io.NopCloser(bytes.NewReader(body))
			activate()
			select {
			case <-r.Context().Done(): // nobody waits for it: it takes its time
				<-activated
			case <-time.After(100 * time.Millisecond):
			}
		}
		change(w, r)
	}
	b := answering(t, answers, func(cfg *Config) { cfg.Advertised = "p1:8080" })
	_ = b.keepAway(ctx, true)
	if err := b.keepAway(t.Context(), false); err != nil {
		t.Error(err)
	}
	close(activated)
	underway.Wait()
	c.wants(t, "activated", setP1, removeP1)
}

func TestAPolicyThatIsRefusedIsSaid(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusPreconditionFailed, http.StatusInternalServerError} {
		c := &isolating{brokers: []string{"p1:8080", "p2:8080"}, refuses: status}
		got := flaw(c.broker(t, "p1:8080").keepAway(t.Context(), true))
		if !strings.HasPrefix(got, "bundles may come back: ") || !strings.Contains(got, fmt.Sprintf("answered %d", status)) {
			t.Errorf("%d: %q", status, got)
		}
	}
	c := &isolating{brokers: []string{"p1:8080", "p2:8080"}, list: map[string]json.RawMessage{"holdfast-drained-p1": primary("p1")}, refuses: http.StatusInternalServerError}
	if got := flaw(c.broker(t, "p1:8080").keepAway(t.Context(), false)); !strings.HasPrefix(got, "the policy holdfast-drained-p1 may keep bundles away: ") {
		t.Error(got)
	}
}

// TestAPolicyThatIsLeftKeepsNoBrokerFromBeingActive: it is said that it remains, so that it is removed later.
func TestAPolicyThatIsLeftKeepsNoBrokerFromBeingActive(t *testing.T) {
	c := &isolating{brokers: []string{"p1:8080", "p2:8080"}, list: map[string]json.RawMessage{"holdfast-drained-p1": primary("p1")}, refuses: http.StatusInternalServerError}
	answers := c.answers()
	answers["owned"] = status(200, `{}`)
	file := filepath.Join(t.TempDir(), "status")
	b := answering(t, answers, func(cfg *Config) { cfg.Advertised, cfg.StatusFile = "p1:8080", file })
	if err := b.SetMode(t.Context(), brokerapi.Active, ""); !errors.Is(err, brokerapi.ErrRemains) || !strings.Contains(err.Error(), "holdfast-drained-p1") {
		t.Errorf("active with a policy that is left: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	c.refuses = 0
	c.mu.Unlock()
	if err := b.SetMode(t.Context(), brokerapi.Active, ""); err != nil {
		t.Error(err)
	}
	c.wants(t, "active", removeP1, removeP1)
}

// TestWhoMayNotAskForPoliciesIsActiveAllTheSame: it has set none.
func TestWhoMayNotAskForPoliciesIsActiveAllTheSame(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		b := answering(t, map[string]http.HandlerFunc{policiesPath: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }}, nil)
		if err := b.keepAway(t.Context(), false); err != nil {
			t.Errorf("%d: %v", status, err)
		}
		if b.keepAway(t.Context(), true) == nil {
			t.Errorf("%d: drained, and nothing is said", status)
		}
	}
}

func TestBadAnswersAboutPoliciesSetNone(t *testing.T) {
	for _, bad := range []string{"", "null", "[]", "<html></html>", `{"a":`, `"` + strings.Repeat("x", 1<<16)} {
		for _, path := range []string{policiesPath, "/admin/v2/brokers/cl"} {
			c := &isolating{brokers: []string{"p1:8080", "p2:8080"}}
			set := c.answers()
			set[path] = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(bad))
			}
			b := answering(t, set, func(cfg *Config) { cfg.Advertised = "p1:8080" })
			if got := flaw(b.keepAway(t.Context(), true)); !strings.HasPrefix(got, "bundles may come back: ") {
				t.Errorf("%s answers %.20q: %q", path, bad, got)
			}
			c.wants(t, bad)
		}
	}
}

func TestTheHostOfABroker(t *testing.T) {
	for id, want := range map[string]string{"p1:8080": "p1", "127.0.0.2:8080": "127.0.0.2", "[::1]:8080": "[::1]"} {
		if got := hostOf(id); got != want || !names(policyOf(got), got) {
			t.Errorf("%s: %s, %s", id, got, string(policyOf(got)))
		}
	}
	if names(policyOf("127.0.0.2"), "127x0.0.2") {
		t.Error("a dot is any letter")
	}
}
