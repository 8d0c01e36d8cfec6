package recovery

// LeaseOrder is what becomes of the lease of a broker now.
type LeaseOrder int

// From the most to the least that is done for it.
const (
	Renew   LeaseOrder = iota // it is renewed, or asked for
	RunsOut                   // it is not, and nobody revokes it
	Rests                     // it is not, and is revoked once --restart-grace is over
	Revokes                   // it is revoked at once
)

// RenewalFacts are what the order rests on.
type RenewalFacts struct {
	Up, Down bool // neither: nobody knows
	Renewed  bool // the order before was to renew
	Held     bool // its fence point has not passed

	Gone, Lives bool // its process is proven to have ended; it is seen to live
	Refuses     bool // it is there, and tells nothing of itself
	Ails        bool // it lives, and its calls fail
	HeldIll     bool // and the others are as ill: see Illness

	GivenUp bool // its departure has given the registration up
	Ending  bool // its departure waits for its end
	Note    bool // and is to be noted before the lease goes
	Noted   bool // it is noted, and the lease is to go at once

	Unnamed    bool // it is not known which broker it is
	Unread     bool // its data directory was not read yet
	Unseen     bool // nor since this process came
	Overdue    bool // another process answers, and the registration of the one before is to run out
	Registers  bool // the broker writes its registration itself
	MustStop   bool // it must not run without its registration
	FencesSelf bool // its storage fences it
	Paused     bool // recovery is paused
}

// renewal is a row of the table of renewals.
type renewal struct {
	renew bool
	why   string
	fits  func(*RenewalFacts) bool
}

// renewals says whether the lease is renewed: the first row that fits. The renewal is tied to the
// broker's life, not to what it can do.
var renewals = []renewal{
	{false, "its process has ended", func(f *RenewalFacts) bool { return f.Gone }}, // also while its last answer still counts, as for a sidecar that was frozen
	{false, "it left, and has given its registration up", func(f *RenewalFacts) bool { return f.GivenUp }},
	{false, "another process of it answers, and the registration of the one before is to run out", func(f *RenewalFacts) bool { return f.Up && f.Overdue }},
	{false, "it is not known yet which broker it is", func(f *RenewalFacts) bool { return f.Up && f.Unnamed }},
	{false, "its data directory is not read yet", func(f *RenewalFacts) bool { return f.Up && f.Unread }},
	{false, "its data directory is to be read once more", func(f *RenewalFacts) bool { return f.Up && f.Unseen && !f.Renewed }},
	{true, "it is up", func(f *RenewalFacts) bool { return f.Up }},
	{true, "it ends on purpose, and has to keep its registration until it has", func(f *RenewalFacts) bool { return f.Down && f.Ending }},
	{true, "it is ill, and the others are as ill", func(f *RenewalFacts) bool { return f.Down && f.HeldIll }},
	{false, "it is down", func(f *RenewalFacts) bool { return f.Down }},
	{true, "nobody knows how it is, and it was renewed before", func(f *RenewalFacts) bool { return f.Renewed }},
	// But where a registration is one process's own, or its loss stops nobody.
	{true, "it is there and refuses us, and keeps what it still has", func(f *RenewalFacts) bool {
		return f.Refuses && f.Held && !f.Unnamed && !f.Registers && !f.FencesSelf
	}},
	{false, "it was not seen to be up yet", func(*RenewalFacts) bool { return true }},
}

// OrderLease says what becomes of the lease, and why. One that is not renewed runs out where the
// registration only ever goes by its TTL, before the note of a departure is written, and while
// recovery is paused. Nor is it revoked while the process is seen to live: that may only hang, and serve
// when it comes to itself; the ladder stops it at the fence point, if it can be stopped. One that was
// given up on purpose was proven to serve nothing, and is revoked at once.
func OrderLease(f RenewalFacts) (LeaseOrder, string) {
	for _, r := range renewals {
		switch {
		case !r.fits(&f):
		case r.renew:
			return Renew, r.why
		case f.Registers && f.MustStop:
			return RunsOut, r.why
		case f.Noted:
			return Revokes, r.why
		case f.Note || f.Paused || f.Lives || f.Ails:
			return RunsOut, r.why
		default:
			return Rests, r.why
		}
	}
	panic("the last row fits always")
}
