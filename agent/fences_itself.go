package agent

import (
	"slices"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/brokerapi"
	"holdfast/recovery"
)

// This file is what is otherwise beside a broker whose storage fences writers that were
// replaced (brokerapi.Nothing at its deadline). Past the end of its lease it does no harm to data, and
// whoever fenced it would only take its clients' broker away: to quiesce it needs the cluster's
// memory, which is what is out of reach then, and to stop it costs a restart.

// fencesItself reports whether the broker's storage fences it.
func (a *agent) fencesItself() bool { return a.traits.AtDeadline == brokerapi.Nothing }

// onlyUnready reports whether at the end of its lease the broker loses readiness and nothing else.
func (a *agent) onlyUnready() bool {
	return a.fencesItself() && !a.fences(recovery.StepQuiesce) && !a.fences(recovery.StepStop)
}

// stopsIll reports whether a broker that is being detached is to be stopped though no step of
// --fence says so: it was ill beside a peer that is well and had lost its registration for that,
// and others serve in its place. Whoever loses it to an outage of etcd alone is left to serve, and
// so is whoever answers something, be it that it refuses us; whoever is drained, which serves
// nothing; and whoever hangs while somebody works on it.
func (a *agent) stopsIll() bool {
	return a.fencesItself() && !a.fences(recovery.StepStop) && a.cfg.CanStop() && a.stopper != nil &&
		a.illness.ruling.Care == recovery.CareLetGo && a.ails(a.verdict) && a.identity.silent.Load() &&
		a.mode.Mode == recovery.Active && !a.paused()
}

// atFencePoint says what becomes of the broker then.
func (a *agent) atFencePoint() string {
	if a.onlyUnready() {
		return "kept from clients"
	}
	return "fenced"
}

// mustStopWhy is what makes a way to stop the process a condition.
const mustStopWhy = "once its registration is gone, a broker of this kind that still runs destroys or serves what is not its own"

// unstoppable is why a broker that must be stopped when its registration goes would not be,
// in one line: setting, why, remedy. Empty: it would be, or it need not be. It is the same
// for us and for the guard, which takes over when this process hangs: a request to the
// broker's own admin API is no way, since a broker that hangs takes none.
func unstoppable(c config.Config, t brokerapi.Traits) string {
	setting, remedy := "", ""
	switch {
	case t.AtDeadline != brokerapi.Stop || c.Shadow:
		return ""
	case !c.CanStop():
		setting, remedy = "--broker-pid-file: not given, and no other way to stop the broker's process either", config.WaysToStop
	case !c.Detach:
		setting, remedy = "--detach=false: the broker would never be stopped", "leave it out"
	case !slices.Contains(c.Fence, string(recovery.StepStop)):
		setting, remedy = "--fence: without the step stop the broker's process is not stopped", "write --fence ready,quiesce,stop, or leave it out"
	case c.Guard != "on":
		setting, remedy = "--guard off: nothing stops the broker's process if this sidecar hangs", "leave it out"
	default:
		return ""
	}
	return setting + ": " + mustStopWhy + ": " + remedy
}

// orKnow is the way out of an unstoppable broker, for who knows what it means.
const orKnow = "; to run all the same: --i-know"

// mustStop reports whether the broker must not run without its registration.
func (a *agent) mustStop() bool { return a.traits.AtDeadline == brokerapi.Stop }

// refuseUnstoppable ends a sidecar beside a broker that must be stopped and would not be,
// unless --i-know says that it is known.
func (a *agent) refuseUnstoppable() error {
	risk := unstoppable(a.cfg, a.traits)
	if risk == "" {
		return nil
	}
	if !a.cfg.IKnow {
		return control.Refused("%s%s", risk, orKnow)
	}
	a.risk = risk
	a.log.Error("DANGER: nothing stops this broker in time when its registration goes (--i-know)", "detail", risk)
	return nil
}

// checkMustStop is the finding about a broker that must be stopped.
func checkMustStop(c config.Config, t brokerapi.Traits) check.Finding {
	f := check.Finding{What: "stop", Text: "the broker must be stopped when its registration goes, and would be: see process"}
	if risk := unstoppable(c, t); risk != "" && c.IKnow {
		f.Warn, f.Text = true, "DANGER (--i-know): "+risk
	} else if risk != "" {
		f.Err = control.Refused("%s%s", risk, orKnow)
	}
	return f
}
