package visit

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

// Ask returns a copy of a node with the request of a person, which replaces an earlier one. What an earlier one has stopped stays
// stopped until a repair of the same quarantine is asked for. It is an error when the node is being
// deleted, or has a record that does not parse.
func Ask(n *corev1.Node, kind, quarantineID string, by quarantine.Manual, now time.Time) (*corev1.Node, error) {
	if n.DeletionTimestamp != nil {
		return nil, errors.New("the node is being deleted")
	}
	r, err := RecordOf(n)
	if err != nil {
		return nil, err
	}
	r = r.Clone(n)
	r.Request = &Request{
		Kind: kind, Quarantine: quarantineID, At: now.UTC().Truncate(time.Second),
		User: causes.Clip(by.User, record.Name/2), Reason: causes.Clip(by.Reason, conditions.MaxMessage),
	}
	switch {
	case kind == RequestStop && quarantineID != "":
		r.Stopped = quarantineID
	case kind == RequestRepair && r.Stopped == quarantineID:
		r.Stopped = ""
	}
	if !slices.Contains([]string{RequestRepair, RequestStop, RequestCheck, RequestRelease}, kind) || len(quarantineID) > record.Name {
		return nil, fmt.Errorf("ask for a %q of quarantine %.80q", kind, quarantineID)
	}
	after := n.DeepCopy()
	r.Put(after)
	return after, nil
}
