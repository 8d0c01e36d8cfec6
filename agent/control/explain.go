package control

import (
	"cmp"
	_ "embed"
	"fmt"
	"strings"

	"holdfast/agent/config"
	"holdfast/recovery"
)

// explanation is what is known in general about one sort of event. Words in braces stand for
// what the settings say: see spelled.
type explanation struct{ why, avoid, next string }

// explanationsTxt has one for each kind and the word that tells most: the reason, or what it
// became. In front of them may stand for which settings they differ.
//
//go:embed explanations.txt
var explanationsTxt string

var explanations = readExplanations()

func readExplanations() map[string]explanation {
	all := map[string]explanation{}
	for part := range strings.SplitSeq("\n"+explanationsTxt, "\n# ") {
		key, text, _ := strings.Cut(part, "\n")
		why, text, _ := strings.Cut(text, "\n")
		x := explanation{why: why, avoid: "Nothing to avoid."}
		for line := range strings.SplitSeq(text, "\n") {
			if avoid, ok := strings.CutPrefix(line, "Avoid: "); ok {
				x.avoid = avoid
			} else if next, ok := strings.CutPrefix(line, "Next: "); ok {
				x.next = next
			}
		}
		all[key] = x
	}
	delete(all, "") // what stands in front of the first
	return all
}

// spelled puts in what the settings say.
func spelled(c config.Config) *strings.Replacer {
	ttl, margin := config.FormatDuration(c.LeaseTTL), config.FormatDuration(c.LeaseDetachMargin)
	guard := fmt.Sprintf("The guard stops the broker %s after the last confirmed renewal was sent (TTL %s minus a third of margin %s), on the boot clock, and later only while the sidecar goes on proving that nothing is served.",
		config.FormatDuration(c.LeaseTTL-c.LeaseDetachMargin/3), ttl, margin)
	guarded, unstoppable := "", ""
	if c.Guard == "on" {
		guarded = " " + guard
	}
	if c.OnlyUnready() && !c.CanStop() {
		unstoppable = " Nothing here stops its process: if it goes on hanging, restart it."
	}
	return strings.NewReplacer("{ttl}", ttl, "{margin}", margin, "{fence}", config.FormatDuration(c.LeaseTTL-c.LeaseDetachMargin),
		"{fenced}", atFencePoint(c), "{ill}", illAtFencePoint(c), "{back}", ComesBack(c),
		"{etcd}", strings.Join(c.EtcdEndpoints, ", "), "{guard}", guard,
		"{guarded}", guarded, "{unstoppable}", unstoppable, "{return}", config.FormatDuration(c.ReturnWithin),
		"{undetached}", config.FormatDuration(c.Timing().SurvivesDetach()), "{unexpired}", config.FormatDuration(c.Timing().SurvivesExpiry()))
}

// Explain says why an event came, what would have avoided it, and what to do, with those settings.
func Explain(e Event, c config.Config) Explanation {
	c = c.Effective()
	x := Explanation{Event: e, Why: "The state of this sidecar changed as the event says.", Avoid: "Nothing to avoid.", Otherwise: e.Otherwise}
	if e.Kind == "boot" {
		e.Kind = "mode" // the boot event carries the reason of the mode that followed
	}
	if x.Otherwise == "" && e.Kind == "mode" { // told by the event before, or of an older version
		x.Otherwise = recovery.Otherwise(recovery.Reason(cmp.Or(e.Row, e.Reason)))
	}
	for _, word := range []string{e.Row, e.To + "/" + e.Reason, e.Reason, e.To} {
		key := e.Kind + "/" + word
		known, ok := explanations[key]
		if !ok || word == "" {
			continue
		}
		if other, differs := explanations["stays/"+key]; differs && c.StaysActive() {
			known = other
		}
		if other, differs := explanations["unleased/"+key]; differs && c.Unleased() {
			known = other
		}
		spelled := spelled(c)
		x.Why, x.Avoid, x.Next = spelled.Replace(known.why), spelled.Replace(known.avoid), spelled.Replace(known.next)
		if e.Shadow {
			x.Why = "Nothing was done (--shadow). Without it: " + x.Why
		}
		return x
	}
	if e.Kind == "mode" {
		x.Why = "An operator, or another program, set the mode; its word is final."
		if e.To != string(recovery.Active) {
			x.Next = "When the work is done: holdfast activate"
		}
	}
	return x
}

// atFencePoint says what is done to the broker there.
func atFencePoint(c config.Config) string {
	if c.OnlyUnready() {
		return "clients are kept away, and nothing else is done: the broker's storage fences writers that were replaced"
	}
	return "the broker is fenced"
}

// illAtFencePoint is the same for one that is ill beside a peer that is well.
func illAtFencePoint(c config.Config) string {
	if c.OnlyUnready() && c.CanStop() {
		return "clients are kept away, and its process is stopped if it hangs"
	}
	return atFencePoint(c)
}

// ComesBack is what becomes of a broker that was declared dead, by the session policy.
func ComesBack(c config.Config) string {
	switch recovery.Policy(c.SessionExpiredPolicy) {
	case recovery.PolicyReconnect:
		return "it registers again and goes on with the topics that are still its own"
	case recovery.PolicyShutdown:
		return "it is stopped and this sidecar ends"
	}
	return "it comes back drained: active by itself if none of them lived on, else by 'holdfast activate'"
}
