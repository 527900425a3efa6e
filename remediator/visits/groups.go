package visits

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

// findGroups notes which nodes are in which group, from the records of all nodes, and has those reconciled whose group has changed.
// Groups without a visit under way are dropped.
func (s *sweeper) findGroups(ctx context.Context, nodes map[string]*corev1.Node) {
	found := repair.Groups{}
	for name, n := range nodes {
		if r, err := s.controller.records.of(n); err == nil {
			found.Add(name, r)
		}
	}
	var changed []string
	s.mu.Lock()
	for id, members := range found {
		if !slices.ContainsFunc(members, repair.Member.IsOpen) {
			delete(found, id)
			continue
		}
		slices.SortFunc(members, repair.Member.Compare)
		if slices.Equal(members, s.groups[id]) {
			continue
		}
		for _, m := range members {
			if m.IsOpen() {
				changed = append(changed, m.Node)
			}
		}
	}
	s.groups = found
	s.mu.Unlock()
	for _, name := range changed {
		s.reconcile(ctx, name)
	}
}

// membersOf are the nodes of the group of the visit under way; nil: they are not known now. The lock is held.
func (s *sweeper) membersOf(r *repair.Record) []repair.Member {
	if r == nil || r.Current == nil {
		return nil
	}
	return s.groups[r.Current.Group.ID]
}

// addGroups adds to those nodes that are swept those whose group is about to begin.
func (s *sweeper) addGroups(nodes, swept map[string]*corev1.Node) {
	for _, members := range s.groups {
		for _, m := range members {
			if n := nodes[m.Node]; n != nil && m.Phase == repair.Emptying {
				swept[m.Node] = n
			}
		}
	}
}

// endGroups has each group make way as a whole for a pod that could run on one of its nodes.
func (s *sweeper) endGroups(waiting map[string]string) {
	for _, members := range s.groups {
		i := slices.IndexFunc(members, func(m repair.Member) bool { return m.IsOpen() && waiting[m.Node] != "" })
		if i < 0 {
			continue
		}
		for _, m := range members {
			if m.IsOpen() && waiting[m.Node] == "" {
				waiting[m.Node] = waiting[members[i].Node]
			}
		}
	}
}

// startGroup selects the nodes of a group. Without the address of its first node it does not begin, and that node has its next turn later.
func (s *sweeper) startGroup(ctx context.Context, g repair.SweepGroup, now time.Time) error {
	leader, err := s.addressOf(ctx, g.Nodes[0])
	if err != nil {
		return err
	}
	if leader == "" {
		s.unopened[g.Nodes[0]] = now
		ctrl.LoggerFrom(ctx).Info("A node without an internal IP cannot lead a group", "sweep", g.Sweep.Name, "node", g.Nodes[0])
		return nil
	}
	id := repair.GroupID(now, g.Nodes)
	s.mu.Lock()
	for rank, name := range g.Nodes {
		s.selected[name] = repair.Selection{Sweep: g.Sweep.Name, At: now, Group: repair.Group{ID: id, Rank: rank, Size: len(g.Nodes), Leader: leader}}
	}
	s.mu.Unlock()
	for _, name := range g.Nodes {
		s.reconcile(ctx, name)
	}
	return nil
}

// addressOf is the first internal IP of a node with which it can lead a group; empty: it has none. The cache does not keep it.
func (s *sweeper) addressOf(ctx context.Context, name string) (string, error) {
	var n corev1.Node
	if err := s.controller.apiReader.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("get node %s: %w", name, err)
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && repair.CanLead(a.Address) {
			return a.Address, nil
		}
	}
	return "", nil
}
