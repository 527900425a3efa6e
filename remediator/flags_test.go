package main

import (
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

func TestPreflightNamespacesAreNames(t *testing.T) {
	for name, good := range map[string]bool{"team-a": true, "7": true, "team a": false, "Team": false, "a.b": false, "": false} {
		if err := checkNamespace(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTheLeaseSettingsKeepTheirPromises(t *testing.T) {
	for _, lease := range []time.Duration{3 * time.Second, 5 * time.Second, 15 * time.Second} {
		o := managerOptions(options{leaseDuration: lease})
		// A wait of client-go is one period and up to JitterFactor more.
		look := time.Duration((1 + leaderelection.JitterFactor) * float64(*o.RetryPeriod))
		if leads := look + *o.LeaseDuration + look; leads > lease*3/2 {
			t.Errorf("with a lease of %s a standby may lead only %s after the leader's death", lease, leads)
		}
		// Before a leader stops it tries to release the lease, with one request that may not be answered.
		release := max(time.Second, *o.RenewDeadline/2)
		if stops := *o.RetryPeriod + *o.RenewDeadline + release; stops >= *o.LeaseDuration {
			t.Errorf("a leader that gets no answer about its lease of %s stops %s after the last renewal", lease, stops)
		}
	}
}
