package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"holdfast/lab/harness"
)

var picturesTo = flag.String("pictures", "", "directory for pictures of the status page in each state; empty: none are taken")

// scheme has the page drawn light or dark.
func (b *tab) scheme(name string) {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		b.t.Fatal(err)
	}
}

// picture draws the page, as long as it is, to a file.
func (b *tab) picture(name string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*picturesTo, name+"-"+scheme+".png"), png, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestPictures draws the page of a real sidecar in each state; `make pictures` takes
// those for the documentation from it.
func TestPictures(t *testing.T) {
	if *picturesTo == "" {
		t.Skip("-pictures says where to")
	}
	desk, phone := newTab(t, 1120, 700), newTab(t, 360, 740)
	s := newStage(t)
	n := s.add("nats-2", nodeOptions{TTL: longTTL, Topics: []string{"/shop/orders", "/shop/payments", "/shop/returns", "/mail/out", "/mail/in"}})
	both := func(name string) {
		desk.picture(name)
		phone.picture(name + "-phone")
	}
	for _, b := range []*tab{desk, phone} {
		b.do("open", chromedp.Navigate(n.sidecar.WebURL()+"/"))
		b.says("sentence", "serves 5 topics")
	}
	both("attached")
	n.must(s.etcd.Freeze())
	desk.says("facts", "degraded")
	both("degraded")
	desk.says("facts", "detached")
	both("detached")
	n.must(s.etcd.Thaw())
	n.awaitReady()
	n.verb("drain", "--reason", "new disk")
	desk.says("sentence", "drained")
	both("drained")
	n.verb("activate", "--reason", "the disk is in")
	n.await("ready", func(st harness.Status) bool { return st.Ready.OK })
	desk.says("sentence", "serves 5 topics")
	both("story")
	n.must(n.sidecar.Freeze())
	desk.says("lost", "No answer")
	both("lost")
	n.must(n.sidecar.Thaw())
}
