package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// The statuses of a node, the worst first.
const (
	Unreadable  = "unreadable"
	Quarantined = "quarantined"
	Isolated    = conditions.StatusIsolated // single GPUs are, the node is in service
	Repairing   = "repairing"
	Validating  = "validating"
	Suspect     = "suspect"
	Released    = "released by a person"
	Alert       = "alert"
	Unknown     = "unknown"
	Healthy     = "healthy"
	Unchecked   = "unchecked"
)

var worstFirst = []string{Unreadable, Quarantined, Repairing, Validating, Isolated, Suspect, Released, Alert, Unknown, Healthy, Unchecked}

// Fleet is what status shows.
type Fleet struct {
	// Pitcrew is what is known of Pitcrew itself.
	Pitcrew health.Health `json:"pitcrew"`
	// Paused is why everything is paused, PausedSince since when and PausedBy by whom; empty: it is not.
	Paused      string    `json:"paused,omitempty"`
	PausedSince time.Time `json:"pausedSince,omitzero"`
	PausedBy    string    `json:"pausedBy,omitempty"`
	// Breaker is the state of the breaker; empty: it is closed.
	Breaker string `json:"breaker,omitempty"`
	// Budgets are those of the policy; BudgetsUnknown is why they cannot be told.
	Budgets        []limits.Use `json:"budgets,omitempty"`
	BudgetsUnknown string       `json:"budgetsUnknown,omitempty"`
	// Sweeps are those of the policy.
	Sweeps []sweepTotal `json:"sweeps,omitempty"`

	Pools []pool `json:"pools"`
	Nodes []Row  `json:"nodes"`
}

// pool counts the nodes of a pool by what they are.
type pool struct {
	Name  string         `json:"name"`
	Nodes int            `json:"nodes"`
	Count map[string]int `json:"count"`
}

// Row is a node.
type Row struct {
	Pool   string            `json:"pool,omitempty"`
	Node   string            `json:"node"`
	Status string            `json:"status"`
	Sticky bool              `json:"sticky,omitempty"`
	Repair conditions.Repair `json:"repair,omitempty"`
	Since  time.Time         `json:"since,omitzero"`
	Cause  string            `json:"cause,omitempty"`
	Rule   string            `json:"rule,omitempty"`
	Taint  string            `json:"taint,omitempty"`
	BootID string            `json:"bootID"`
	// Visit is the sweep, repair or check that is under way, Request what a person asked for and is not done yet, Checked the newest
	// check that the node has passed, and Advice what repairs so far recommend for the quarantine.
	Visit   *visit.Visit   `json:"visit,omitempty"`
	Request *visit.Request `json:"request,omitempty"`
	Checked *visit.Checked `json:"checked,omitempty"`
	Advice  *visit.Advice  `json:"advice,omitempty"`
	// Approve is the command that the node's repair waits for; empty: it waits for none.
	Approve string `json:"approve,omitempty"`
}

func readFleet(ctx context.Context, c *cli.Target, api client.Client, flags statusFlags) (f Fleet, err error) {
	h, err := health.Inspect(ctx, c, api)
	if err != nil {
		return f, err
	}
	f.Pitcrew = h.Health
	breaker, opened, err := readBreaker(ctx, c, api, &f)
	if err != nil {
		return f, err
	}
	paused, err := readPause(ctx, c, api, &f)
	if err != nil {
		return f, err
	}
	defer func() { f.addFacts(opened, paused) }() // below the budgets
	var nodes corev1.NodeList
	err = api.List(ctx, &nodes)
	if apierrors.IsForbidden(err) {
		f.BudgetsUnknown = err.Error()
		f.addFacts(cli.NotKnown("nodes", err))
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("list nodes: %w", err)
	}
	p, err := addBudgets(c, &f, h, nodes.Items, breaker, flags.policy)
	if err != nil {
		return f, err
	}
	watched, err := watchedBy(ctx, c, api)
	if err != nil {
		return f, err
	}
	repairs := p
	if namespace, known := h.RepairNamespace(); known && namespace == "" {
		repairs = nil // no remediator would do it
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		r := RowOf(n, c.Now())
		r.Pool = cmp.Or(watched[n.Name], firstLabel(n, flags.poolLabels))
		r.addVisit(n)
		r.addApproval(repairs, n, c.Now())
		f.Nodes = append(f.Nodes, r)
	}
	slices.SortFunc(f.Nodes, compareWorst)
	f.addVisits(repairs, nodes.Items, c.Now())
	f.countPools()
	return f, nil
}

func (f *Fleet) addFacts(facts ...cli.Finding) { f.Pitcrew.Facts = append(f.Pitcrew.Facts, facts...) }

// readBreaker reports whether the breaker is open.
func readBreaker(ctx context.Context, c *cli.Target, api client.Client, f *Fleet) (*corev1.ConfigMap, cli.Finding, error) {
	const label = "breaker"
	breaker, err := c.Read(ctx, api, conditions.BreakerConfigMap)
	if err != nil {
		fact, err := cli.Unless(label, err)
		return nil, fact, err
	}
	if breaker == nil || breaker.Data[limits.BreakerKey] == "" {
		return breaker, cli.Good(label, "closed"), nil
	}
	f.Breaker = breaker.Data[limits.BreakerKey]
	opened := limits.ParseBreaker(f.Breaker, c.Now().UTC()).OpenedAt
	return breaker, cli.Warning(label, "", "OPEN since %s: no new quarantines", c.Ago(opened)), nil
}

// readPause reports whether everything is paused.
func readPause(ctx context.Context, c *cli.Target, api client.Client, f *Fleet) (cli.Finding, error) {
	const label = "paused"
	paused, err := pause.Read(ctx, api, c.Namespace)
	switch {
	case err != nil:
		return cli.Unless(label, err)
	case paused == nil:
		return cli.Good(label, "no"), nil
	}
	f.Paused, f.PausedSince, f.PausedBy = paused.Reason, paused.Since, paused.By
	since := "since " + c.Ago(paused.Since)
	if paused.By != "" {
		since = "by " + paused.By + " " + since
	}
	return cli.Warning(label, "", "%s (%s): no quarantines, releases or restarts", since, paused.Reason), nil
}

// watchedBy names the pools of the chart whose node-problem-detectors watch each node. Who may not list pods sees none.
func watchedBy(ctx context.Context, c *cli.Target, api client.Client) (map[string]string, error) {
	var pods corev1.PodList
	err := api.List(ctx, &pods, client.InNamespace(c.Namespace), client.MatchingLabels{cli.LabelName: cli.OwnNPD})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	pools := map[string][]string{}
	for _, pod := range pods.Items {
		if name := pod.Labels[cli.LabelPool]; !slices.Contains(pools[pod.Spec.NodeName], name) {
			pools[pod.Spec.NodeName] = append(pools[pod.Spec.NodeName], name)
		}
	}
	names := map[string]string{}
	for n, list := range pools {
		slices.Sort(list)
		names[n] = strings.Join(list, "+")
	}
	return names, nil
}

// firstLabel is the value of the first of the labels that the node has.
func firstLabel(n *corev1.Node, keys []string) string {
	for _, key := range keys {
		if value := n.Labels[key]; value != "" {
			return value
		}
	}
	return "-"
}

// countPools counts the nodes of each pool, and sorts by pool, the one with the worst node first.
func (f *Fleet) countPools() {
	for _, r := range f.Nodes {
		i := slices.IndexFunc(f.Pools, func(p pool) bool { return p.Name == r.Pool })
		if i < 0 {
			i = len(f.Pools)
			f.Pools = append(f.Pools, pool{Name: r.Pool, Count: map[string]int{}})
		}
		f.Pools[i].Nodes++
		f.Pools[i].Count[r.Status]++
	}
	place := map[string]int{}
	for i, p := range f.Pools {
		place[p.Name] = i
	}
	slices.SortStableFunc(f.Nodes, func(a, b Row) int { return cmp.Compare(place[a.Pool], place[b.Pool]) })
}

// compareWorst orders by status, then by the repair that the nodes need, then by how long.
func compareWorst(a, b Row) int {
	return cmp.Or(
		cmp.Compare(slices.Index(worstFirst, a.Status), slices.Index(worstFirst, b.Status)),
		cmp.Compare(b.Repair, a.Repair), a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
}

func RowOf(n *corev1.Node, now time.Time) Row {
	r := readRow(n, now)
	r.dropImpossibleTime()
	return r
}

// readRow is [rowOf] with the times as the node has them.
func readRow(n *corev1.Node, now time.Time) Row {
	r := Row{Node: n.Name, Status: Healthy, BootID: n.Status.NodeInfo.BootID}
	record, err := causes.RecordOf(n)
	labelled, _ := record.Labels(false)
	switch {
	case err != nil:
		r.Status, r.Cause = Unreadable, err.Error()
		return r
	case record == nil || labelled == "healthy":
		r.fromConditions(n, now)
		return r
	case record.Phase == causes.Released:
		r.Status = Released
	case record.Phase == causes.Quarantined:
		r.Status, r.Sticky = Quarantined, record.ManualReleaseOnly
		switch maintained := node.Maintained(n, now); {
		case maintained && node.HasTaintValue(n.Spec.Taints, conditions.TaintMaintenance, conditions.MaintenanceValidation):
			r.Status = Validating
		case maintained:
			r.Status = Repairing
		case record.IsIsolated():
			r.Status = Isolated
		}
	default:
		r.Status = Suspect
	}
	if t := record.Taint; t != nil && record.Phase == causes.Quarantined {
		r.Rule, r.Taint = t.Rule, t.String()
	}
	ready, isNotReady := node.NotReady(n)
	r.Since = cmp.Or(record.ReleasedAt, record.QuarantinedAt, record.Causes[0].FirstSeen)
	var texts []string
	for _, c := range record.Causes {
		r.Repair = max(r.Repair, c.Repair)
		texts = append(texts, string(c.Condition)+": "+c.Message)
		isNotReady = isNotReady && c.Condition != ready.Type
	}
	if isNotReady {
		texts = append(texts, causes.DescribeNotReady(ready))
	}
	r.Cause = strings.Join(texts, " | ")
	return r
}

// fromConditions fills the row from the conditions alone: there is no record of what a rule only alerts about. Without a condition of
// ours the node is unchecked. Of a node that is not Ready no condition reports anything.
func (r *Row) fromConditions(n *corev1.Node, now time.Time) {
	if c, ok := node.NotReady(n); ok {
		r.Status, r.Since, r.Cause = Unknown, c.LastTransitionTime.Time, causes.DescribeNotReady(c)
		return
	}
	r.Status = Unchecked
	for _, c := range n.Status.Conditions {
		if !conditions.Ours(string(c.Type)) {
			continue
		}
		since, cause := c.LastTransitionTime.Time, string(c.Type)+": "+c.Message
		is, repair, confirmed := Healthy, conditions.Repair(0), c.LastHeartbeatTime.Time
		switch m, err := conditions.ParseMessage(c.Message); {
		case causes.FromFuture(confirmed, now):
			is, since, cause = Unknown, confirmed, fmt.Sprintf("%s: its heartbeat is in the future; is the node's clock right?", c.Type)
		case !conditions.IsVerdict(string(c.Type)) && now.Sub(confirmed) > policy.DefaultUnknownAfter:
			is, since, cause = Unknown, confirmed, fmt.Sprintf("%s: no heartbeat for %s; is NPD running?", c.Type,
				duration.HumanDuration(now.Sub(confirmed)))
		case c.Status == corev1.ConditionUnknown:
			is = Unknown
		case c.Status == corev1.ConditionTrue:
			is = Alert
			if err == nil {
				repair = m.Repair
			}
		}
		found := Row{Node: r.Node, BootID: r.BootID, Status: is, Repair: repair, Since: since, Cause: cause}
		switch {
		case is == Healthy && r.Status == Unchecked:
			r.Status = Healthy
		case is != Healthy && compareWorst(found, *r) < 0:
			*r = found
		}
	}
}
