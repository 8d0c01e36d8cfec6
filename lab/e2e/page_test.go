package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// browsing skips a test that starts a browser, which is slow.
func browsing(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser is slow")
	}
	t.Parallel()
}

// shows opens the status page and waits until it shows the node ready.
func (b *tab) shows(n *node) {
	b.t.Helper()
	b.opens(n.sidecar.WebURL() + "/")
	b.says("sentence", fmt.Sprintf("%s is attached, active and serves %d topics.", n.id, len(n.topics)))
	b.says("verdict", "OK")
	b.says("verdict", "clients may come since")
}

func (b *tab) opens(url string) {
	b.t.Helper()
	b.do("open "+url, chromedp.Navigate(url))
}

// fits checks that nothing sticks out at the side.
func (b *tab) fits() {
	b.t.Helper()
	if wide := b.eval("document.documentElement.scrollWidth + ' of ' + window.innerWidth"); b.eval("document.documentElement.scrollWidth > window.innerWidth") != "false" {
		b.t.Errorf("the page is wider than the window: %s", wide)
	}
}

func TestTheStatusPageFollowsADrainAndItsEnd(t *testing.T) {
	browsing(t)
	b := newTab(t, 1120, 800)
	n := newStage(t).add("n1", nodeOptions{})
	b.shows(n)
	b.awaits("both countdowns", `/^\d+\ss$/.test(document.getElementById("fence-n").innerText) && document.getElementById("dead-t").innerText === "to the deadline"`)
	b.awaits("they tick and are moved away again by renewals", `(window.seen = window.seen || new Set()).add(document.getElementById("dead-n").innerText) && window.seen.size > 1`)

	n.verb("drain", "--reason", "new disk")
	b.says("sentence", "n1 is drained (new disk) and keeps clients away")
	b.says("verdict", "Notice – clients are kept away")
	b.says("why", "mode: drained (new disk)")
	b.says("why", "holdfast activate")
	b.awaits("no topic to be served", `document.getElementById("served").innerText.startsWith("0 of 2 assigned")`)
	b.says("entries", "active → drained (new disk)")
	b.says("said", "Notice, clients are kept away")
	b.awaits("the title to say it", `document.title.startsWith("Notice: n1")`)

	n.verb("activate", "--reason", "done")
	b.says("sentence", "n1 is attached, active and serves 2 topics.")
	b.awaits("no causes", `document.getElementById("why").hidden`)

	b.do("ask why", chromedp.Click(chromedp.CSS("#entries .why")))
	b.awaits("the explanation", `document.querySelector("#entries .more:not([hidden])").innerText.startsWith("Why")`)
	n.verb("drain", "--reason", "again")
	b.says("entries", "drained (again)")
	b.awaits("what was opened to stay open", `document.querySelectorAll("#entries .more:not([hidden])").length === 1`)
	b.wantNoComplaints()
	b.wantOnlyFrom(n.sidecar.WebURL())
}

func TestTheStatusPageCountsDownToTheFence(t *testing.T) {
	browsing(t)
	b := newTab(t, 360, 740)
	s := newStage(t)
	n := s.add("n1", nodeOptions{TTL: longTTL})
	b.shows(n)
	n.must(s.etcd.Freeze())
	b.says("verdict", "Warning – clients may come")
	b.says("lease-note", "Unless etcd confirms one")
	b.says("why", "failed in a row")
	b.says("sentence", "n1 is detached")
	b.says("verdict", "Critical – clients are kept away")
	b.says("fence-t", "since the fence point")
	b.says("lease-note", "fence point has passed")
	b.says("entries", "degraded → detached (fence_point)")
	b.says("dead-t", "since the deadline")
	b.says("lease-note", "deadline has passed")
	b.fits()
	n.must(s.etcd.Thaw())
	b.says("verdict", "OK")
	b.wantNoComplaints()
}

func TestTheStatusPageSaysThatItLostItsSidecar(t *testing.T) {
	for _, fault := range []struct {
		name  string
		lose  func(*node) error
		mend  func(*node) error
		since string // what is said after it
	}{
		{"killed", func(n *node) error { return n.sidecar.Kill() }, func(n *node) error { return n.sidecar.Start() }, "The sidecar was started again at"},
		{"frozen", func(n *node) error { return n.sidecar.Freeze() }, func(n *node) error { return n.sidecar.Thaw() }, ""},
	} {
		t.Run(fault.name, func(t *testing.T) {
			browsing(t)
			b := newTab(t, 1120, 800)
			n := newStage(t).add("n1", nodeOptions{TTL: 5 * time.Minute})
			b.shows(n)
			b.wantNoComplaints()
			n.must(fault.lose(n))
			b.says("lost", "No answer from the sidecar since")
			b.says("lost", "What is below was true then.")
			b.awaits("when that was", `/since \d\d:\d\d:\d\d UTC/.test(document.getElementById("lost").innerText)`)
			b.says("verdict", "Unknown – at")
			b.says("verdict", "it was: OK, clients may come")
			b.says("lease-note", "The last known deadline is")
			b.awaits("no live countdown", `document.getElementById("counts").hidden`)
			b.awaits("the title to say it", `document.title.startsWith("No answer: n1")`)
			b.says("entries", "readiness") // which can still be read
			b.legible()
			n.must(fault.mend(n))
			b.awaits("the sidecar to be found again", `document.getElementById("lost").hidden`)
			b.says("sentence", "n1 is attached, active and serves 2 topics.")
			b.says("verdict", "OK")
			if fault.since != "" {
				b.says("note", fault.since)
			}
			for _, c := range b.heard() { // a browser tells by itself that a connection was refused
				if !strings.HasPrefix(c, "network error: Failed to load resource: net::ERR_") {
					t.Errorf("the browser complains: %s", c)
				}
			}
		})
	}
}

func TestHostileTextIsShownAsText(t *testing.T) {
	browsing(t)
	b := newTab(t, 360, 740)
	s := newStage(t)
	const hostile = `<img src=x onerror="document.title='owned'"><script>alert(1)</script>`
	n := s.add("n1", nodeOptions{})
	_, err := s.etcd.Client().Put(s.ctx, "/cluster/brokers/n1/default/"+hostile+"/more", "null")
	s.must(err)
	n.assign("/default/<b>bold</b>" + strings.Repeat("wide", 30))
	b.opens(n.sidecar.WebURL() + "/")
	b.says("entries", hostile+"/more")
	n.verb("drain", "--reason", hostile)
	b.says("sentence", "drained ("+hostile+")")
	b.says("why", hostile)
	b.says("rows", hostile)
	if found := b.eval(`document.querySelectorAll("main img, main script, main b b").length`); found != "0" {
		t.Errorf("%s elements were made of text", found)
	}
	b.fits()
	b.wantNoComplaints()
	b.wantOnlyFrom(n.sidecar.WebURL())
}

// legible checks every text that is seen, in light and dark.
func (b *tab) legible() {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		if faint := b.eval(tooFaint); faint != "" {
			b.t.Errorf("%s: contrast below 4.5: %s", scheme, faint)
		}
	}
}

// tooFaint lists texts whose contrast with what is behind them is below WCAG's AA.
const tooFaint = `(() => {
	const rgb = c => { const d = document.createElement('canvas').getContext('2d'); d.fillStyle = c; d.fillRect(0, 0, 1, 1); return [...d.getImageData(0, 0, 1, 1).data]; };
	const light = ([r, g, b]) => { const f = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
	const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
	const bad = [];
	for (const e of document.querySelectorAll('body *')) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(e.tagName)) continue;
		const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) bad.push(e.tagName + '#' + e.id + ' ' + ratio.toFixed(2) + ' ' + e.innerText.slice(0, 20));
	}
	return bad.join('; ');
})()`
