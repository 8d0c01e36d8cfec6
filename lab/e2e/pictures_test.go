package e2e

import (
	"bytes"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
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

// draw writes what an action sees to files, one light and one dark.
func (b *tab) draw(shot chromedp.Action[[]byte], light, dark string) {
	b.t.Helper()
	for scheme, file := range map[string]string{"light": light, "dark": dark} {
		b.scheme(scheme)
		raw, err := chromedp.Run(b.ctx, shot)
		if err == nil {
			raw, err = fewColours(raw)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(*picturesTo, file), raw, 0o644)
		}
		if err != nil {
			b.t.Fatalf("picture %s: %v", file, err)
		}
	}
}

// fewColours makes a picture small: 256 colours are enough for a page. They are those that
// it has most of; of edges that hardly differ only one.
func fewColours(raw []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	counts := map[color.Color]int{}
	area := from.Bounds()
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			counts[from.At(x, y)]++
		}
	}
	var few color.Palette
	for _, c := range slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] }) {
		much := counts[c] > area.Dx()*area.Dy()/500
		if len(few) < 256 && (much || !slices.ContainsFunc(few, func(other color.Color) bool { return alike(c, other) })) {
			few = append(few, c)
		}
	}
	to := image.NewPaletted(area, few)
	nearest := map[color.Color]uint8{}
	for c := range counts {
		nearest[c] = uint8(to.Palette.Index(c))
	}
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			to.SetColorIndex(x, y, nearest[from.At(x, y)])
		}
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to)
	return out.Bytes(), err
}

func alike(a, b color.Color) bool {
	near := func(x, y uint32) bool { return max(x, y)-min(x, y) < 10<<8 }
	r1, g1, b1, _ := a.RGBA()
	r2, g2, b2, _ := b.RGBA()
	return near(r1, r2) && near(g1, g2) && near(b1, b2)
}

// TestPictures draws the page of a real sidecar in each state. Of these, `make pictures`
// puts status-page.png and status-page-dark.png into docs/images.
func TestPictures(t *testing.T) {
	if *picturesTo == "" {
		t.Skip("-pictures says where to")
	}
	desk, phone := newTab(t, 1080, 860), newTab(t, 360, 740)
	s := newStage(t)
	n := s.add("nats-2", nodeOptions{TTL: longTTL, Topics: []string{"/shop/orders", "/shop/payments", "/shop/returns", "/mail/out", "/mail/in"}})
	both := func(name string) {
		desk.draw(chromedp.FullScreenshot(100), name+".png", name+"-dark.png")
		phone.draw(chromedp.FullScreenshot(100), name+"-phone.png", name+"-phone-dark.png")
	}
	for _, b := range []*tab{desk, phone} {
		b.do("open", chromedp.Navigate(n.sidecar.WebURL()+"/"))
		b.says("sentence", "serves 5 topics")
	}
	both("attached")
	n.must(s.etcd.Freeze())
	desk.says("facts", "degraded")
	desk.awaits("the time that makes a good picture", `parseInt(document.getElementById("fence-n").innerText) <= 9`)
	desk.draw(chromedp.CaptureScreenshot(), "status-page.png", "status-page-dark.png")
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
	n.pause("1h")
	desk.says("facts", "paused")
	both("paused")
	n.verb("resume")
	n.must(n.sidecar.Freeze())
	desk.says("lost", "No answer")
	both("lost")
	n.must(n.sidecar.Thaw())
	n.must(n.broker.Kill())
	desk.says("facts", "down")
	both("down")

	shadow := s.add("nats-3", nodeOptions{Flags: []string{"--shadow"}})
	desk.do("open", chromedp.Navigate(shadow.sidecar.WebURL()+"/"))
	desk.says("sentence", "shadow")
	desk.draw(chromedp.FullScreenshot(100), "shadow.png", "shadow-dark.png")
	late := s.prepare("nats-4", nodeOptions{})
	n.must(s.etcd.Freeze())
	late.start()
	late.await("an answer", func(harness.Status) bool { return true })
	desk.do("open", chromedp.Navigate(late.sidecar.WebURL()+"/"))
	desk.says("sentence", "not registered")
	desk.draw(chromedp.FullScreenshot(100), "without-etcd.png", "without-etcd-dark.png")
	n.must(s.etcd.Thaw())
}
