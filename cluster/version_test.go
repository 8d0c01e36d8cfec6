package cluster

import "testing"

func TestMembersWithStaleReadsAreKnownByTheirVersion(t *testing.T) {
	for _, row := range []struct {
		version string
		stale   bool
		fixedIn string
	}{
		{"3.3.27", true, "3.6.9"},
		{"3.4.23", true, "3.4.42"},
		{"3.4.41", true, "3.4.42"},
		{"3.4.42", false, "3.4.42"},
		{"3.5.0", true, "3.5.28"},
		{"3.5.27", true, "3.5.28"},
		{"3.5.28", false, "3.5.28"},
		{"3.6.0-rc.3", true, "3.6.9"},
		{"3.6.8", true, "3.6.9"},
		{"3.6.9", false, "3.6.9"},
		{"3.6.10+vendor.1", false, "3.6.9"},
		{"3.7.0", false, ""},
		{"4.0.0", false, ""},
		{"", false, ""},
		{"latest", false, ""},
		{"3.5", false, ""},
	} {
		if fixed, stale := StaleReads(row.version); stale != row.stale || fixed != row.fixedIn {
			t.Errorf("%q: %q %t, want %q %t", row.version, fixed, stale, row.fixedIn, row.stale)
		}
	}
}
