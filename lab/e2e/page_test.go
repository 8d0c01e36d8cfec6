package e2e

import (
	"testing"

	"github.com/chromedp/chromedp"
)

func (n *node) opens(b *tab) {
	n.t.Helper()
	b.do("open the status page", chromedp.Navigate(n.sidecar.WebURL()+"/"))
}

func TestTheStatusPageShowsADrainAndItsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser is slow: runs in .ci/run")
	}
	t.Parallel()
	b := newTab(t, 1120, 800)
	s := newStage(t)
	n := s.add("n1", nodeOptions{})
	n.opens(b)
	b.says("sentence", "n1 is attached, active and serves 2 topics.")
	b.says("verdict", "OK")
	b.wantNoComplaints()
	b.wantOnlyFrom(n.sidecar.WebURL())
}
