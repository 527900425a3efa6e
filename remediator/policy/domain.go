package policy

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

// Domain is a kind of group of nodes that share a part which can fail under all of them. Nodes with the same value of the label
// are one domain.
//
// One broken link of an NVLink fabric makes faults on all GPUs that use it. The node with an Xid 149, or with a link that an Xid
// calls fatal, is the origin, and is quarantined as its rule says. A node whose only faults are Xid 145, and Xid 45 caused by an Xid
// 145 or 149, is a victim: it is tainted with effect NoSchedule while the origin is quarantined, its jobs are not restarted and its
// GPUs are not reset, and it uses up no place of a budget. It returns to service with the origin; if the origin's Node is gone before
// that, with its own faults. Two or more victims without an origin point at the switches: their faults then have the class Inspect,
// whatever their message says. A domain has 72 nodes at most. An eighth more may claim to be in it, since a kubelet can write most labels.
//
// A node without any of the labels is a domain of its own: two or more GPUs that are victims point at the switches of its board.
//
// When a whole domain fails, for example because its power or its switches fail, the guard against common causes would suspect the
// detector and quarantine none of its nodes. With `incidents`, the nodes of a domain that fail together are quarantined as one.
//
// The value of a label that a node loses is remembered, because the label of a fabric vanishes when the fabric is faulty: in the
// record while the node has one, else until the remediator restarts.
//
//	spec:
//	  domains:
//	  - label: nvidia.com/gpu.clique
//	    settle: 3s
//	    window: 2m
//	    incidents: {minNodes: 4, maxNodes: 72}
type Domain struct {
	// label is the key of the node label whose value names the domain.
	Label string `yaml:"label" unit:"label key" required:"the key of a node label"`
	// settle is how long a fault that another node may have caused waits for the fault of that node. A rule's `for` runs meanwhile.
	Settle time.Duration `yaml:"settle" above:"0s"`
	// window is how far apart faults of a domain may have begun that belong together, by the clocks of the nodes.
	Window time.Duration `yaml:"window" above:"0s"`
	// incidents has the nodes of a domain that fail together quarantined as one. They are not unless it is set; `{}` sets the defaults.
	Incidents *Incidents `yaml:"incidents"`
}

// Incidents are failures of whole domains. A node takes part if two independent witnesses on that node say that it has failed, one of
// them HCAPortDown. The other is any condition of the GPU driver, or that the node is not Ready. Both began within the `window` of the
// domain, and a rule that enforces matches each; Ready counts without a rule, too. No node speaks for another one.
//
// minNodes or more such nodes within the window are an incident. The guard against common causes does not hold them back for what
// the nodes of their domain show, though it does for what other nodes show with them. All together they use up one place of each budget,
// and count once for the breaker. A node with one witness is quarantined or held back as without this setting.
//
// One incident at a time is treated so. While minNodes of its nodes are quarantined, those of another domain are quarantined or held
// back as without this setting.
type Incidents struct {
	// minNodes is how many nodes of a domain must have failed.
	MinNodes int `yaml:"minNodes" unit:"nodes" min:"2"`
	// maxNodes is how many may have failed at most. More than that and an eighth are no domain, and are quarantined or held back as
	// without this setting.
	MaxNodes int `yaml:"maxNodes" unit:"nodes" min:"2"`
}

func (i *Incidents) SetDefaults() { i.MinNodes, i.MaxNodes = 4, 72 }

// The settle and window of a domain that sets none. The faults of one broken link came within 7 seconds on all racks of a job
// (marin-community/marin#8934), and the clocks of nodes and the rhythm of their detectors differ by more.
const (
	DefaultDomainSettle = 3 * time.Second
	DefaultDomainWindow = 2 * time.Minute
)

func (d *Domain) SetDefaults() { d.Settle, d.Window = DefaultDomainSettle, DefaultDomainWindow }

// Domain finds a domain by its label.
func (p *Policy) Domain(label string) (Domain, bool) {
	i := slices.IndexFunc(p.Domains, func(d Domain) bool { return d.Label == label })
	if i < 0 {
		return Domain{}, false
	}
	return p.Domains[i], true
}

// checkDomains checks what tags cannot: that labels are keys, and that none comes twice.
func (p *Policy) checkDomains(d *strict.Decoder, at *field.Path) {
	for i, domain := range p.Domains {
		label := at.Index(i).Child("label")
		if domain.Label == "" {
			continue // that it is required is said already
		}
		d.InvalidFor(label, domain.Label, validation.IsQualifiedName(domain.Label))
		if slices.ContainsFunc(p.Domains[:i], func(before Domain) bool { return before.Label == domain.Label }) {
			d.Add(field.Duplicate(label, domain.Label))
		}
		if both := domain.Incidents; both != nil && both.MinNodes > both.MaxNodes {
			d.Invalid(at.Index(i).Child("incidents", "minNodes"), both.MinNodes, fmt.Sprintf("must be at most maxNodes, which is %d", both.MaxNodes))
		}
	}
}
