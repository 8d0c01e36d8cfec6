package agent

// Severity says how much a status matters to the person who is woken by it.
type Severity string

// From the least to the most.
const (
	SeverityOK       Severity = "ok"       // clients may come, and nothing is to do
	SeverityInfo     Severity = "info"     // as somebody wants it, or about to be ready
	SeverityWarning  Severity = "warning"  // clients may come, but not for long unless somebody looks; or it waits for a person
	SeverityCritical Severity = "critical" // clients are kept away, and nobody asked for that
)

// circumstances are what a severity depends on beside the status.
type circumstances struct {
	everReady     bool
	wasRegistered bool // the broker, in this sidecar's life or before
	leaves        bool // on purpose
	asked         bool // for the mode, by a person or another program
	mustStop      bool // somebody else must end the broker or its double: a restart, an identity conflict
	risk          bool // something that would protect a ready broker does not work, or waits for a person
}

// severityOf judges a status. It agrees with the summary, which says the same in words.
func severityOf(s Status, c circumstances) Severity {
	judged := judge(s, c)
	switch {
	case s.Shadow && judged == SeverityCritical: // nothing was done: clients come as before
		return SeverityWarning
	case s.Pause != nil && judged == SeverityOK:
		return SeverityInfo
	}
	return judged
}

func judge(s Status, c circumstances) Severity {
	switch {
	case s.Ready.OK && (s.Lease.FailureStreak > 0 || c.risk || s.Topics.Missing > s.Topics.Elsewhere):
		return SeverityWarning
	case s.Ready.OK:
		return SeverityOK
	case c.leaves:
		return SeverityInfo
	case c.mustStop, s.StoppedBy != nil:
		return SeverityCritical
	case s.Mode == "" && !c.wasRegistered: // it never was in the cluster, so it cannot have left it
		if s.Lease.LastError != "" {
			return SeverityWarning
		}
		return SeverityInfo
	case s.Mode == "" && s.Lease.LastError == "": // the sidecar was started again, and takes up what is there
		return SeverityInfo
	case s.Mode != "active" && c.asked && s.Broker.Steering != "failing" && (s.Attachment != "detached" || s.Broker.Up == "down"):
		return SeverityInfo // a broker that is being worked on may also be down
	case s.Mode != "active" && c.asked:
		return SeverityWarning
	case s.Broker.Up == "down", s.Attachment == "detached", s.Mode == "":
		return SeverityCritical
	case s.Mode != "active", s.Broker.Up != "up", c.everReady:
		return SeverityWarning
	}
	return SeverityInfo // it loads its topics
}
