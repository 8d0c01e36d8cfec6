package registration

import (
	"testing"

	"holdfast/cluster"
	"holdfast/recovery"
)

func TestWhoWasRegisteredBeforeTheProcessThatAnswers(t *testing.T) {
	as := func(id string) *cluster.Member { return &cluster.Member{RegisteredAs: id} }
	for _, row := range []struct {
		name       string
		remembered string
		record     *cluster.Member
		want       string
	}{
		{"nobody", "", nil, ""},
		{"only the state file knows", "11", nil, "11"},
		{"the record knows more than the state file", "10", as("11"), "11"},
		{"the state file is lost", "", as("11"), "11"},
		{"the record is of the process that answers, and may be half done", "11", as("12"), "11"},
		{"the record is of a version that did not say", "11", as(""), "11"},
		{"the same process", "12", as("12"), ""},
	} {
		if got := formerID(row.remembered, row.record, "12"); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

// A registration is bound by whoever wrote the record last, while nobody has written the key since.
func TestWhoBoundARegistration(t *testing.T) {
	ours := func(change func(m *cluster.Member)) *cluster.Member {
		m := &cluster.Member{Incarnation: "mine", RegisteredAs: "12", ModRevision: 7}
		if change != nil {
			change(m)
		}
		return m
	}
	r := New(Deps{Config: natsSettings()})
	for _, row := range []struct {
		name   string
		record *cluster.Member
		epoch  int64 // that is remembered
		own    bool
		former recovery.Holder
	}{
		{"we did", ours(nil), 0, true, recovery.Nobody},
		{"there is no record", nil, 0, false, recovery.Nobody},
		{"there is no record, and we remember the one before", nil, 5, false, recovery.Us},
		{"another did", ours(func(m *cluster.Member) { m.Incarnation = "another" }), 0, false, recovery.Nobody},
		{"it was written anew since", ours(func(m *cluster.Member) { m.ModRevision = 6 }), 0, false, recovery.Nobody},
		{"we bound the one before", ours(func(m *cluster.Member) { m.RegisteredAs = "11" }), 0, false, recovery.Us},
	} {
		seen := cluster.Snapshot{Member: row.record, Process: cluster.Process{BrokerID: "12", Registration: &cluster.Registration{BrokerID: "12", CreateRevision: 7}},
			Former: cluster.Process{BrokerID: "11", Registration: &cluster.Registration{BrokerID: "11", CreateRevision: 5}}}
		f := r.succession(seen, Past{Incarnation: "mine", Epoch: row.epoch})
		if f.OwnBound != row.own || f.Former != row.former {
			t.Errorf("%s: bound by us %t, the one before is %v's; want %t, %v", row.name, f.OwnBound, f.Former, row.own, row.former)
		}
	}
}

// Nobody gives a dead process's topics to others when nobody was registered who saw it go.
func TestWhetherAnybodySawTheProcessBeforeGo(t *testing.T) {
	for _, row := range []struct {
		name string
		play func(o *outage)
		want bool
	}{
		{"it stands", func(*outage) {}, false},
		{"a peer stood when it went", (*outage).lose, false},
		{"everybody went", (*outage).everybodyElseGoes, true},
		{"everybody went, and a peer came later", func(o *outage) { o.everybodyElseGoes(); o.peer("n3") }, true},
		{"a peer came, and then it went", func(o *outage) { o.unregister("n2"); o.peer("n3"); o.lose() }, false},
	} {
		o := newOutage(t, "drain")
		row.play(o)
		o.putValue(o.client.Keys().Registration("12"), "{}")
		seen, err := o.client.SnapshotOf(t.Context(), cluster.Who{Name: "b1", Registered: "12", Former: "n1", Oldest: true})
		if err != nil {
			t.Fatal(err)
		}
		if unseen, err := o.wentUnseen(t.Context(), o.client, seen); err != nil || unseen != row.want {
			t.Errorf("%s: unseen %t, %v", row.name, unseen, err)
		}
		seen.Former = cluster.Process{}
		if unseen, err := o.wentUnseen(t.Context(), o.client, seen); err != nil || unseen {
			t.Errorf("%s, and there was none before: unseen %t, %v", row.name, unseen, err)
		}
	}
}
