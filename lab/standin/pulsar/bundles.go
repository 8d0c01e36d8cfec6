package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// errUnloading is what clients of a bundle hear that is on its way out.
var errUnloading = errors.New("namespace bundle is being unloaded")

// errNobody is what clients of a bundle hear that no broker may take.
var errNobody = errors.New("no broker is available")

// take owns a bundle that is free, or is this broker's from an earlier session.
func (b *Broker) take(ctx context.Context, bundle Bundle) error {
	if err := b.session.acquire(ctx, bundle.Key(), b.ownerValue()); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owned[bundle.String()] = &owned{bundle: bundle, active: true}
	return nil
}

// ownerOf is the web address of who owns the bundle. Where nobody does it is this broker, if it is to
// decide or nobody else is to take it; or it is sent to whoever decides.
func (b *Broker) ownerOf(ctx context.Context, bundle Bundle, decides bool) (httpURL string, sent bool, err error) {
	b.taking.Lock()
	defer b.taking.Unlock()
	for range 3 {
		b.mu.Lock()
		o := b.owned[bundle.String()]
		unloading := o != nil && !o.active
		b.mu.Unlock()
		switch {
		case unloading:
			return "", false, errUnloading
		case o != nil:
			return b.httpURL(), false, nil
		}
		owner, err := b.read(ctx, bundle)
		if err != nil {
			return "", false, err
		}
		if owner != "" && owner != b.httpURL() {
			return owner, false, nil
		}
		if owner == "" && !decides {
			if owner, err = b.sent(ctx, bundle); owner == "" && err == nil {
				owner, err = b.chosen(ctx)
			}
			switch {
			case err != nil:
				return "", false, err
			case owner == "":
				return "", false, errNobody
			case owner != b.httpURL():
				return owner, true, nil
			}
		}
		err = b.take(ctx, bundle)
		if err == nil {
			return b.httpURL(), false, nil
		}
		if !errors.Is(err, errBusy) {
			return "", false, err
		}
	}
	return "", false, fmt.Errorf("bundle %s: %w", bundle, errBusy)
}

// read is who owns the bundle by its key; empty: nobody does.
func (b *Broker) read(ctx context.Context, bundle Bundle) (httpURL string, err error) {
	answer, err := b.session.etcd.Get(ctx, bundle.Key())
	if err != nil || len(answer.Kvs) == 0 {
		return "", err
	}
	var owner struct {
		HTTPURL string `json:"httpUrl"`
	}
	if err := json.Unmarshal(answer.Kvs[0].Value, &owner); err != nil || owner.HTTPURL == "" {
		return "", fmt.Errorf("%s does not say who owns it: %s", bundle.Key(), answer.Kvs[0].Value)
	}
	return owner.HTTPURL, nil
}

// unload closes the bundle, then releases its lock. A release that fails leaves
// the bundle in the cache, inactive.
func (b *Broker) unload(ctx context.Context, o *owned) error {
	b.mu.Lock()
	o.active = false
	b.mu.Unlock()
	if err := b.session.release(ctx, o.bundle.Key()); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owned[o.bundle.String()] == o {
		delete(b.owned, o.bundle.String())
	}
	return nil
}
