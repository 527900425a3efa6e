// Package breaker remembers which repairs have not helped, per action and condition: an action that failed on several nodes in a row is
// held on all of them until a person resets the breaker. It is pure. Its state is in a ConfigMap, so it outlives the nodes, their records
// and the leader.
package breaker

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

const (
	// Key is that of the state in the ConfigMap [conditions.BreakerConfigMap].
	Key = "repairs"
	// maxState is the most bytes of the state, maxStreaks and maxTries are the most entries that are kept.
	maxState, maxStreaks, maxTries = 256 << 10, 128, 64
)

// Action is the template of a repair and a condition that it is for.
type Action struct {
	Template  string                   `json:"template"`
	Condition corev1.NodeConditionType `json:"condition"`
}

// String names the action in a sentence.
func (a Action) String() string { return fmt.Sprintf("%s for %s", a.Template, a.Condition) }

// Node is a node on which an action is tried. A kubelet may delete its Node and create it anew, but not under another name: all that have a
// name count as one. Without one, as in what an earlier version wrote, the UID counts.
type Node struct {
	UID  types.UID `json:"node"`
	Name string    `json:"name,omitempty"`
}

func (n Node) is(other Node) bool { return n.UID == other.UID || n.Name != "" && n.Name == other.Name }

// Try is an action on a node that has not helped, or not yet.
type Try struct {
	Node
	At time.Time `json:"at"`
	// Failed is set when the action has ended and has not helped.
	Failed bool `json:"failed,omitempty"`
}

// Streak is an action and the nodes on which it was tried since it last helped, the oldest first.
type Streak struct {
	Action
	Tries []Try `json:"tries" max:"64"`
}

// State is what is remembered of all actions.
type State struct {
	Streaks []Streak `json:"streaks" max:"128"`
}

// Parse reads the state. It is input.
func Parse(text string, now time.Time) (*State, error) {
	s := &State{}
	if text == "" {
		return s, nil
	}
	if len(text) > maxState {
		return nil, fmt.Errorf("state of %d bytes is larger than any that the remediator writes", len(text))
	}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("decode the failed repairs: %w", err)
	}
	if err := record.Check(s); err != nil {
		return nil, fmt.Errorf("failed repairs: %w", err)
	}
	record.Clamp(s, now)
	return s, nil
}

// String returns the text of the state.
func (s *State) String() string {
	if len(s.Streaks) == 0 {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil { // a time that JSON cannot express
		return ""
	}
	return string(text)
}

// Outcome is what is known of an action on a node.
type Outcome string

// The outcomes. An action that did nothing to the node is Undone.
const (
	Started Outcome = "started"
	Failed  Outcome = "failed"
	Helped  Outcome = "helped"
	Undone  Outcome = "undone"
)

// Note notes the outcome of an action on a node. Noting it twice equals noting it once.
func (s *State) Note(a Action, node Node, outcome Outcome, now time.Time) {
	i := slices.IndexFunc(s.Streaks, func(k Streak) bool { return k.Action == a })
	if i < 0 {
		if outcome == Helped || outcome == Undone {
			return
		}
		s.Streaks = append(s.Streaks[max(0, len(s.Streaks)-maxStreaks+1):], Streak{Action: a})
		i = len(s.Streaks) - 1
	}
	k := &s.Streaks[i]
	tried := slices.IndexFunc(k.Tries, func(t Try) bool { return t.is(node) })
	if tried >= 0 && k.Tries[tried].UID != node.UID {
		k.Tries[tried].Node, k.Tries[tried].Failed = node, true // the Node before it went away
	}
	switch {
	case outcome == Helped:
		k.Tries = nil
	case outcome == Undone && tried >= 0 && !k.Tries[tried].Failed:
		k.Tries = slices.Delete(k.Tries, tried, tried+1)
	case outcome == Undone:
	case tried < 0:
		k.Tries = append(k.Tries[max(0, len(k.Tries)-maxTries+1):], Try{node, now, outcome == Failed})
	case outcome == Failed:
		k.Tries[tried].Failed = true
	}
	s.Streaks = slices.DeleteFunc(s.Streaks, func(k Streak) bool { return len(k.Tries) == 0 })
}

// Held returns the actions that are held: those that failed on as many nodes as allowed, or more, since they last helped. A node that went
// away during the action counts: exists reports whether there is the node. 0 allows any number.
func (s *State) Held(allowed int, exists func(types.UID) bool) map[Action]int {
	held := map[Action]int{}
	for _, k := range s.Streaks {
		failed := 0
		for _, t := range k.Tries {
			if t.Failed || !exists(t.UID) {
				failed++
			}
		}
		if allowed > 0 && failed >= allowed {
			held[k.Action] = failed
		}
	}
	return held
}

// ActionsFor returns what a repair by a template is for: the causes of the quarantine that repairs are for.
func ActionsFor(template string, q *causes.Record) []Action {
	var actions []Action
	if q == nil {
		return nil
	}
	for _, c := range q.Causes {
		a := Action{template, c.Condition}
		if c.Due && (c.Repair == conditions.ResetGPU || c.Repair == conditions.Reboot) && !slices.Contains(actions, a) {
			actions = append(actions, a)
		}
	}
	return actions
}
