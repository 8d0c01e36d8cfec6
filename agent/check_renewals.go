package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"holdfast/cluster"
)

// checkRenewals grants, renews and revokes one lease through each endpoint that answers. What
// stands in between may carry reads and no renewal, and nothing else says so before the first
// lease ends. No key hangs on any of them.
func checkRenewals(ctx context.Context, c Config, log *slog.Logger) Finding {
	f := Finding{What: "renewal"}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	reached := make([]bool, len(c.EtcdEndpoints))
	failures := askEach(c, log, func(i int, client *cluster.Client) error {
		if err := client.Reach(ctx); err != nil {
			return err // the finding on etcd says it
		}
		reached[i] = true
		return renewOnce(ctx, c, client)
	})
	asked, renewed := 0, 0
	var failing []error
	for i, err := range failures {
		switch {
		case !reached[i]:
			continue
		case err != nil:
			failing = append(failing, fmt.Errorf("%s carries reads and no renewal: %w", c.EtcdEndpoints[i], err))
		default:
			renewed++
		}
		asked++
	}
	f.Text = fmt.Sprintf("a lease was granted, renewed and revoked through %d of %d endpoints that answer", renewed, asked)
	switch {
	case renewed == 0 && len(failing) > 0:
		f.Err = fmt.Errorf("--etcd-endpoints %q: %w: give the members of etcd themselves, or see what the proxy or firewall in between lets through",
			strings.Join(c.EtcdEndpoints, ","), errors.Join(failing...))
	case len(failing) > 0:
		f.Warn = true
		f.Text += "; " + strings.ReplaceAll(errors.Join(failing...).Error(), "\n", "; ")
	}
	return f
}

func renewOnce(ctx context.Context, c Config, client *cluster.Client) error {
	id, _, err := client.Grant(ctx, c.LeaseTTL)
	if err != nil {
		return fmt.Errorf("grant: %w", &shortError{err})
	}
	if _, err := client.KeepAlive(ctx, id); err != nil {
		err = fmt.Errorf("renew: %w", &shortError{err})
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		_ = client.Revoke(undo, id) // else it runs out
		return err
	}
	if err := client.Revoke(ctx, id); err != nil {
		return fmt.Errorf("revoke: %w", &shortError{err})
	}
	return nil
}
