package recognize

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"holdfast/agent/config"
	"holdfast/agent/process"
	"holdfast/probes"
)

// Finder finds the broker's process.
func Finder(c config.Config) *probes.Finder {
	return &probes.Finder{PIDFile: c.BrokerPIDFile, Name: c.BrokerProcess, Admin: func() ([]netip.AddrPort, error) {
		at := adminAddrs(context.Background(), c)
		if _, _, ok := AdminAddress(c); ok && len(at) == 0 {
			return nil, fmt.Errorf("--broker-admin %s: the address of its host is not known", c.BrokerAdmin)
		}
		return at, nil
	}}
}

// ChildRecord is the file by which a child is found again, by the next sidecar and
// by the guard.
func ChildRecord(c config.Config) string { return filepath.Join(c.StateDir, "child.json") }

// Stopper finds and stops the broker's process; nil: there is no way to. A child is
// found by its record, so that the guard and a check, which have no hand on it, see the same.
func Stopper(c config.Config, log *slog.Logger) (*process.Stopper, error) {
	if !c.CanStop() {
		return nil, nil
	}
	s := process.Settings{PIDFile: c.BrokerPIDFile, Name: c.BrokerProcess, Command: c.StopCommand, Log: log}
	if len(c.Command) > 0 {
		s.Record = ChildRecord(c)
	}
	stopper, err := process.NewStopper(s)
	if err != nil {
		return nil, err
	}
	stopper.Use(Finder(c))
	return stopper, stopper.Check()
}

// Stranger says who answers where a child of ours is to be.
func Stranger(ctx context.Context, c config.Config) string {
	who := "whose process is not seen from here"
	if seen, v := probes.ListensAt(ctx, 0, adminAddrs(ctx, c)); seen == probes.HoldingAnother {
		who = fmt.Sprintf("process %d, %s", v.Pid, v.Name)
	}
	return fmt.Sprintf("a broker that is not our child already answers at %s (%s): stop it, or leave out '-- CMD' and give --broker-pid-file",
		c.BrokerAdmin, who)
}
