package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/web"
	"holdfast/brokerapi/access"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery/topics"
)

// reloading is the state of taking up settings anew.
type reloading struct {
	one  sync.Mutex                    // held during a reload: one at a time
	now  atomic.Pointer[config.Config] // effective settings; nil: those of the start
	last atomic.Pointer[control.ConfigStatus]
	// shown is what etcd was shown when the settings in force were taken up.
	shown [sha256.Size]byte
}

// settings are the ones in force, as one snapshot. Those that a reload may change are read
// through it and nowhere else; the others are the same in a.cfg.
func (a *agent) settings() *config.Config {
	if c := a.reloading.now.Load(); c != nil {
		return c
	}
	return &a.cfg
}

// reload reads the settings anew and takes up what changed, all of it or nothing. First
// everything is read, validated and tried; what follows cannot fail. by is who asked.
// Errors are *ExitError: ExitUsage for settings that cannot work, ExitRefused for those
// that need a restart.
func (a *agent) reload(ctx context.Context, by string) (control.Reloaded, error) {
	a.reloading.one.Lock()
	defer a.reloading.one.Unlock()
	a.sayReloading()
	shown := shownToEtcd(a.cfg) // another file needs a restart
	next, done, err := a.prepare(ctx, shown != a.reloading.shown)
	if err != nil {
		a.noteReload(err, by, done)
		return control.Reloaded{}, err
	}
	a.reloading.shown = shown
	a.takeSettings(next)
	a.noteReload(nil, by, done)
	a.tell(ctx, func() {}) // the loop judges anew
	done.BrokerID = a.view.Load().brokerID
	return done, nil
}

// shownToEtcd stands for what is in the files that etcd is shown, or known by.
func shownToEtcd(c config.Config) [sha256.Size]byte {
	var all []byte
	for _, file := range []string{c.EtcdCACert, c.EtcdCert, c.EtcdKey, c.EtcdPasswordFile} {
		content, _ := os.ReadFile(file)
		all = fmt.Appendf(all, "%q", content)
	}
	return sha256.Sum256(all)
}

// prepare does everything of a reload that can fail.
func (a *agent) prepare(ctx context.Context, shownAnew bool) (next config.Config, done control.Reloaded, err error) {
	if next, err = a.cfg.Again(); err != nil {
		return next, done, control.UsageError(err)
	}
	running := *a.settings()
	if a.shadow != nil && filepath.Join(next.StateDir, control.ShadowDir) == running.StateDir {
		running.StateDir = next.StateDir // as it was before it became the shadow's own
	}
	if done.Changed, err = planReload(running, next); err != nil {
		return next, done, err
	}
	if a.world.Try != nil {
		if done.Found, err = a.world.Try(ctx, next, shownAnew); err != nil {
			return next, done, control.UsageError(err)
		}
	}
	done.Found = append(done.Found, next.Overridden()...)
	return next, done, nil
}

// planReload compares effective settings: "health-fall: 3 → 5". The error names all that cannot
// be taken up.
func planReload(running, next config.Config) ([]string, error) {
	changed, refusals := running.Changes(next)
	if len(refusals) == 0 {
		return changed, nil
	}
	text := strings.Join(refusals, "; ")
	if len(changed) > 0 {
		text += "; and so nothing was applied, not " + strings.Join(changed, ", ") + " either"
	}
	return nil, control.Refused("%s: restart the sidecar, or take it back", text)
}

// takeSettings puts the settings in force. It cannot fail.
func (a *agent) takeSettings(c config.Config) {
	c.StateDir = a.cfg.StateDir
	a.reloading.now.Store(&c)
	if a.world.SetLogLevel != nil {
		a.world.SetLogLevel(c.LogLevel)
	}
	a.health.Tune(healthSettings(c))
	a.reconciler.Tune(reconcilerSettings(c))
	a.steerer.Tune(c.LoadTimeout, c.AuditInterval)
	if a.ownership != nil {
		a.ownership.Tune(c.AuditInterval)
	}
	if a.placer != nil {
		a.placer.Tune(c.LoadConcurrency)
	}
}

func healthSettings(c config.Config) probes.HealthSettings {
	return probes.HealthSettings{Interval: c.HealthInterval, Timeout: c.HealthTimeout, Rise: c.HealthRise, Fall: c.HealthFall}
}

func reconcilerSettings(c config.Config) topics.ReconcilerSettings {
	return topics.ReconcilerSettings{Concurrency: c.LoadConcurrency, Rate: c.LoadRate, LoadTimeout: c.LoadTimeout,
		AuditInterval: c.AuditInterval, MassChangeShare: c.MassChangeShare}
}

// noteReload tells everybody how a reload went.
func (a *agent) noteReload(err error, by string, done control.Reloaded) {
	now := time.Now().UTC()
	status := control.ConfigStatus{}
	if last := a.reloading.last.Load(); last != nil {
		status = *last
	}
	what := cmp.Or(strings.Join(done.Changed, ", "), "nothing changed")
	what = strings.Join(append([]string{what}, done.Found...), "; ")
	if err != nil {
		what = strings.Join(strings.Split(err.Error(), "\n"), "; ")
		status.Error, status.FailedAt = what, &now
		a.log.Error("settings not applied: those from before stay", "by", by, "err", what)
		a.event(control.Event{Kind: "config", To: "refused", Reason: by, Detail: what})
	} else {
		status.Error, status.FailedAt, status.ReloadedAt = "", nil, &now
		a.log.Info("settings read anew", "by", by, "changed", what)
		a.event(control.Event{Kind: "config", To: "reloaded", Reason: by, Detail: what})
	}
	a.reloading.last.Store(&status)
	if a.systemd != nil {
		a.say("READY=1")
	}
}

// sayReloading tells a service manager of Type=notify-reload that settings are being read;
// see sd_notify(3). READY=1 must follow, however it goes.
func (a *agent) sayReloading() {
	var ts unix.Timespec
	if a.systemd == nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return
	}
	a.say("RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(ts.Nano()/1000, 10))
}

// reloadPatience is how long the end waits for a reload. It has nothing to wait for but a
// disk that hangs, and a lease to give up.
const reloadPatience = time.Second

// followHangups reloads at each SIGHUP. One whose files cannot be read to their end is left
// behind when ctx ends.
func (a *agent) followHangups(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.world.Hangups:
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = a.reload(ctx, "SIGHUP") // logged
		}()
		select {
		case <-done:
			continue
		case <-ctx.Done():
		}
		select {
		case <-done:
		case <-time.After(reloadPatience):
			a.log.Warn("a reload is left behind: the files of the settings cannot be read")
		}
		return nil
	}
}

// configStatus is never nil.
func (a *agent) configStatus() control.ConfigStatus {
	if s := a.reloading.last.Load(); s != nil {
		return *s
	}
	return control.ConfigStatus{}
}

func (a *agent) serveReload(w http.ResponseWriter, r *http.Request) {
	done, err := a.reload(r.Context(), "holdfast reload")
	control.Respond(w, done, err)
}

// serveWebReload is as Prometheus has it, but only for those who had to show who they are.
func (a *agent) serveWebReload(w http.ResponseWriter, r *http.Request) {
	access, err := config.ReadWebAccess(a.cfg.WebConfigFile)
	if err != nil || !access.Shown(r) {
		control.RefuseWith(w, http.StatusForbidden, control.ExitRefused, errors.New("POST "+web.ReloadPath+
			" is only for those who show a password or a certificate: set --web-config-file with basic_auth_users or RequireAndVerifyClientCert; or send SIGHUP, or run 'holdfast reload'"))
		return
	}
	done, err := a.reload(r.Context(), "POST "+web.ReloadPath)
	control.Respond(w, done, err)
}

// tryAccess reads the files that settings name, as they will be used, and has etcd judge the user and
// the certificate. It says what it found. An etcd that is out of reach judges nothing, and one that
// refuses what it was shown before is no reason against other settings.
func tryAccess(ctx context.Context, c config.Config, shownAnew bool) (found []string, err error) {
	quiet := slog.New(slog.DiscardHandler)
	if err := c.Cluster().CheckFiles(); err != nil {
		return nil, err
	}
	// Validate knows the driver, which does not use its store before it is asked for anything.
	b, err := config.Drivers[c.Driver].New(c, new(cluster.Client), quiet)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	for _, flag := range [][3]string{{"etcd", c.EtcdCert, c.EtcdKey}, {"broker", c.BrokerCert, c.BrokerKey}} {
		if end, _ := (access.Files{Cert: flag[1], Key: flag[2]}).Until(); end != "" {
			found = append(found, fmt.Sprintf("--%s-cert %s lasts until %s", flag[0], flag[1], end))
		}
	}
	if c.Unleased() || c.EtcdUser+c.EtcdCert == "" {
		return found, nil
	}
	client, err := cluster.Open(c.Cluster(), quiet)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, check.Timeout)
	defer cancel()
	if err = client.Reach(ctx); err == nil {
		return append(found, "etcd lets us in"), nil
	}
	switch err = control.EtcdError(c, err); {
	case control.IsUsage(err) && shownAnew:
		return nil, err
	case control.IsUsage(err):
		return append(found, "etcd does not let us in, and its settings and files are those of before: "+err.Error()), nil
	}
	return append(found, "whether etcd lets us in is not known: "+err.Error()), nil
}
