// Command pictures draws the status page for the README, light and dark, into the directory
// that it is given: of a real sidecar that has lost etcd and counts down to its fence. It
// needs chromium.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"holdfast/lab/harness"
)

const bound = time.Minute

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "pictures: want one argument: the directory to draw into")
		os.Exit(2)
	}
	if err := draw(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func draw(ctx context.Context, dir string) (err error) {
	lab, err := harness.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{})
	if err != nil {
		return err
	}
	broker, err := lab.StartNATS(ctx, harness.NATSOptions{Name: "nats-2"})
	if err != nil {
		return err
	}
	if err := (harness.Keys{}).Assign(ctx, etcd.Client(), broker.Name, "/shop/orders", "/shop/payments", "/shop/returns", "/mail/out", "/mail/in"); err != nil {
		return err
	}
	sidecar, err := lab.StartSidecar(harness.SidecarOptions{Broker: broker, Endpoints: []string{etcd.Endpoint()}})
	if err != nil {
		return err
	}
	if _, err := sidecar.Await(ctx, bound, "five topics", func(st harness.Status) bool { return st.Topics.Served == 5 }); err != nil {
		return err
	}
	ctx, stop := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.UserDataDir(filepath.Join(lab.Dir, "chromium")), chromedp.Flag("no-sandbox", true))...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1080, 860), chromedp.Navigate(sidecar.WebURL()+"/")); err != nil {
		return err
	}
	if err := etcd.Freeze(); err != nil {
		return err
	}
	if err := harness.Await(ctx, bound, "nine seconds to the fence", func(ctx context.Context) (bool, string) {
		soon, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`parseInt(document.getElementById("fence-n").innerText) <= 9`))
		return soon, fmt.Sprint(err)
	}); err != nil {
		return err
	}
	for _, picture := range []struct{ scheme, file string }{{"light", "status-page.png"}, {"dark", "status-page-dark.png"}} {
		media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: picture.scheme}}}
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
			return err
		}
		shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, picture.file), shot, 0o644); err != nil {
			return err
		}
	}
	return nil
}
