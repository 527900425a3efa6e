// Package failures keeps which repairs did not help, see package breaker, in the ConfigMap of the breakers.
package failures

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
)

// Store keeps the state. It remembers nothing itself: a person may delete the ConfigMap at any time. A nil Store has no failures.
type Store struct {
	// Nodes reads the Nodes, from the cache.
	Nodes  client.Reader
	Policy *policy.File
	Clock  clock.PassiveClock

	key    keystore.Key
	noting sync.Mutex // of two that read the same state, the second would overwrite the note of the first
}

// New returns a Store that reads the ConfigMap with a reader that has no cache.
func New(nodes client.Client, live client.Reader, namespace string, p *policy.File, c clock.PassiveClock) *Store {
	key := client.ObjectKey{Namespace: namespace, Name: conditions.BreakerConfigMap}
	return &Store{Nodes: nodes, Policy: p, Clock: c, key: keystore.Key{Client: nodes, Reader: live, ConfigMap: key, Name: breaker.Key}}
}

// Held returns the actions that failed on as many nodes in a row as the policy allows.
func (s *Store) Held(ctx context.Context) (map[breaker.Action]int, error) {
	if s == nil || s.Policy.Policy().Repair == nil {
		return nil, nil
	}
	text, err := s.key.Read(ctx)
	if err != nil {
		return nil, err
	}
	return s.HeldIn(ctx, text)
}

// HeldIn is [Store.Held] for who has read the ConfigMap: text is that of its key [breaker.Key].
func (s *Store) HeldIn(ctx context.Context, text string) (map[breaker.Action]int, error) {
	if s == nil || s.Policy.Policy().Repair == nil {
		return nil, nil
	}
	state, err := breaker.Parse(text, s.Clock.Now().UTC())
	if err != nil {
		return nil, fmt.Errorf("key %s of ConfigMap %s, which `kubectl pitcrew reset` removes: %w", s.key.Name, s.key.ConfigMap, err)
	}
	if len(state.Streaks) == 0 {
		return nil, nil
	}
	var nodes corev1.NodeList
	if err := s.Nodes.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	exists := map[types.UID]bool{}
	for i := range nodes.Items {
		exists[nodes.Items[i].UID] = true
	}
	return state.Held(s.Policy.Policy().Repair.MaxFailures, func(uid types.UID) bool { return exists[uid] }), nil
}

// Note notes what became of actions on a node. It comes before the patch of the node: what is noted twice counts once, and what is not
// noted never counts. A state that cannot be read lets what has begun end, and nothing begin.
func (s *Store) Note(ctx context.Context, n *corev1.Node, notes []repair.Note) error {
	if s == nil || len(notes) == 0 {
		return nil
	}
	s.noting.Lock()
	defer s.noting.Unlock()
	text, err := s.key.Read(ctx)
	if err != nil {
		return err
	}
	now := s.Clock.Now().UTC()
	state, err := breaker.Parse(text, now)
	if err != nil {
		if notes[0].Outcome == breaker.Started {
			return fmt.Errorf("read which repairs failed: %w", err)
		}
		return nil
	}
	before := state.String()
	for _, note := range notes {
		state.Note(note.Action, breaker.Node{UID: n.UID, Name: n.Name}, note.Outcome, now)
	}
	if state.String() == before {
		return nil
	}
	return s.key.Write(ctx, state.String())
}

var heldDesc = prometheus.NewDesc("pitcrew_repair_held",
	"On how many nodes an action failed in a row that is held on all nodes, until a person resets the breaker.",
	[]string{"action", "condition"}, nil)

// Collect counts the failures of the actions that are held. It sends nothing while the API server does not answer: an invalid metric would
// hide all others.
func (s *Store) Collect(ctx context.Context, out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	held, err := s.Held(ctx)
	if err != nil {
		return
	}
	for action, failed := range held {
		out <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, float64(failed), action.Template, string(action.Condition))
	}
}
