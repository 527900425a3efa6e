package devices

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Sweeper finds the rules that no quarantine explains, if a policy has ever isolated devices.
type Sweeper struct {
	Store *Store
	// CanIsolate reports whether a policy has ever isolated devices.
	CanIsolate func(context.Context) (bool, error)
	// Node is the node of a name in the cache, which must not be changed; nil: there is none.
	Node func(ctx context.Context, name string) (*corev1.Node, error)
	// Again has a node decided.
	Again func(ctx context.Context, node string)
}

// Start runs until the context ends.
func (w *Sweeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(rulesSweep)
	defer ticker.Stop()
	for {
		if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to find the DeviceTaintRules of earlier quarantines; retrying", "after", rulesSweep)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-w.Store.lost:
		}
	}
}

// sweep deletes the rules of nodes that are gone, and has the others decided whose records have no isolation.
func (w *Sweeper) sweep(ctx context.Context) error {
	if w.Store.dryRun {
		return nil
	}
	if can, err := w.CanIsolate(ctx); err != nil || !can {
		return err
	}
	rules, err := w.Store.list(ctx, client.MatchingLabels{devices.LabelManagedBy: devices.ManagedBy})
	if meta.IsNoMatchError(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("list DeviceTaintRules: %w", err)
	}
	var errs []error
	left := map[string]bool{}
	for i := range rules {
		name := devices.NodeOf(&rules[i])
		n, err := w.Node(ctx, name)
		if err == nil && (n == nil || string(n.UID) != rules[i].Labels[devices.LabelNodeUID]) { // the cache may be late
			n = &corev1.Node{}
			err = w.Store.apiReader.Get(ctx, client.ObjectKey{Name: name}, n)
		}
		switch {
		case apierrors.IsNotFound(err), err == nil && string(n.UID) != rules[i].Labels[devices.LabelNodeUID]:
			errs = append(errs, w.Store.delete(ctx, &rules[i]))
		case err != nil:
			errs = append(errs, fmt.Errorf("get node %s: %w", name, err))
		default:
			record, err := causes.RecordOf(n)
			left[name] = err == nil && (record == nil || record.Isolation == nil)
		}
	}
	for name, isLeft := range left {
		if isLeft {
			w.Store.noteRules(name)
			w.Again(ctx, name)
		}
	}
	return errors.Join(errs...)
}

// noteRules has the next look read the rules of a node, whatever its record says.
func (s *Store) noteRules(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ruled[node] = true
}
