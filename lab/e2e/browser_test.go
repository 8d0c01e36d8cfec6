package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"holdfast/lab/harness"
)

// pageBound is for what a browser on a busy machine should show within a second.
const pageBound = 60 * time.Second

// chromium finds a browser, or skips the test.
func chromium(t *testing.T) string {
	t.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skipf("the status page is not tried in a browser: none of %s is installed (Debian: apt-get install chromium)", strings.Join(names, ", "))
	return ""
}

// tab is one tab of a headless browser, and all that it complained of and asked for.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// newTab starts a browser with one tab of that size.
func newTab(t *testing.T, width, height int64) *tab {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(chromium(t)), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("no-sandbox", true), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true))
	browser, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithErrorf(t.Logf))
	t.Cleanup(closeTab)
	b := &tab{t: t, ctx: ctx}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("start the browser: %v", err)
		}
	}
	must(chromedp.Do(ctx, chromedp.EmulateViewport(width, height)))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	must(err)
	var listening sync.WaitGroup
	t.Cleanup(func() { closeTab(); listening.Wait() })
	said, asked := chromedp.Console(ctx), chromedp.Events(ctx, network.RequestWillBeSent)
	listening.Go(func() {
		for m, err := range said {
			if err != nil {
				return
			}
			b.note(&b.complaints, strings.TrimSpace(fmt.Sprintf("%s %s %s", m.Source, m, m.URL)))
		}
	})
	listening.Go(func() {
		for e, err := range asked {
			if err != nil {
				return
			}
			b.note(&b.requests, e.Request.URL)
		}
	})
	return b
}

func (b *tab) note(list *[]string, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*list = append(*list, what)
}

func (b *tab) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// eval returns what an expression is in the page, as text.
func (b *tab) eval(expression string) string {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// awaits returns when an expression holds in the page.
func (b *tab) awaits(what, expression string) {
	b.t.Helper()
	if err := harness.Await(b.ctx, pageBound, what, func(ctx context.Context) (bool, string) {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err != nil {
			return false, err.Error()
		}
		seen, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
		if err != nil {
			return false, err.Error()
		}
		return ok, seen
	}); err != nil {
		b.t.Fatal(err)
	}
}

// says waits until the text of an element holds that.
func (b *tab) says(id, part string) {
	b.t.Helper()
	b.awaits(id+" to say "+part, fmt.Sprintf("document.getElementById(%q).innerText.includes(%q)", id, part))
}

// heard takes what the browser complained of since it was last asked.
func (b *tab) heard() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.complaints
	b.complaints = nil
	return all
}

func (b *tab) wantNoComplaints() {
	b.t.Helper()
	for _, c := range b.heard() {
		b.t.Errorf("the browser complains: %s", c)
	}
}

// wantOnlyFrom checks that nothing was fetched from anywhere else.
func (b *tab) wantOnlyFrom(base string) {
	b.t.Helper()
	want, err := url.Parse(base)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) == 0 {
		b.t.Error("nothing was fetched")
	}
	for _, r := range b.requests {
		if got, err := url.Parse(r); err != nil || got.Scheme != "data" && got.Host != want.Host {
			b.t.Errorf("fetched %s", r)
		}
	}
}
