package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// right is a permission, in words and as the API server takes it.
type right struct {
	Verb, Group, Resource, subresource, name string
	// ours: it is needed in Pitcrew's namespace only; namespace: in that one only.
	ours      bool
	namespace string
}

func (r right) String() string {
	resource := r.Resource
	if r.Group != "" {
		resource += "." + r.Group
	}
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	return strings.TrimSpace(r.Verb + " " + resource + " " + r.name)
}

func (d *doctor) attributes(r right) *authorizationv1.ResourceAttributes {
	namespace := r.namespace
	if r.ours {
		namespace = d.Namespace
	}
	return &authorizationv1.ResourceAttributes{Verb: r.Verb, Group: r.Group, Resource: r.Resource, Subresource: r.subresource, Name: r.name,
		Namespace: namespace}
}

// toView and toOperate are what the roles pitcrew-view and pitcrew-operate are for.
var (
	toView = []right{
		{Verb: "list", Resource: "nodes"}, {Verb: "list", Resource: "pods", ours: true}, {Verb: "get", Resource: "configmaps", ours: true},
		{Verb: "list", Group: "apps", Resource: "deployments", ours: true}, {Verb: "list", Group: "apps", Resource: "daemonsets", ours: true},
		{Verb: "get", Group: "coordination.k8s.io", Resource: "leases", name: "pitcrew-remediator", ours: true},
	}
	toOperate = []right{
		{Verb: "patch", Resource: "nodes"}, {Verb: "write", Group: conditions.Domain, Resource: "noderecords"},
		{Verb: "create", Resource: "configmaps", ours: true},
		{Verb: "delete", Resource: "configmaps", name: conditions.PauseConfigMap, ours: true},
		{Verb: "create", Resource: "pods", subresource: "exec", ours: true},
	}
)

// ownRights asks what the user may do.
func (d *doctor) ownRights(ctx context.Context) ([]cli.Finding, error) {
	missing := func(rights []right) (list []string, err error) {
		for _, r := range rights {
			review := authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: d.attributes(r)}}
			if err := d.api.Create(ctx, &review); err != nil {
				return nil, fmt.Errorf("ask for your rights: %w", err)
			}
			if !review.Status.Allowed {
				list = append(list, r.String())
			}
		}
		return list, nil
	}
	user, err := cli.WhoAmI(ctx, d.api)
	if err != nil {
		return nil, err
	}
	view, err := missing(toView)
	if err != nil {
		return nil, err
	}
	operate, err := missing(toOperate)
	if err != nil {
		return nil, err
	}
	switch {
	case len(view) > 0:
		return []cli.Finding{cli.Warning("", "an admin binds the role pitcrew-view to you (userRoles of the chart)",
			"%s may not %s: what needs that is not shown", user, strings.Join(view, ", "))}, nil
	case len(operate) > 0:
		return []cli.Finding{cli.Good("", "%s may look at everything, and change nothing: that needs role pitcrew-operate (%s)", user,
			strings.Join(operate, ", "))}, nil
	}
	return []cli.Finding{cli.Good("", "%s may look at everything, quarantine, release, clear and pause", user)}, nil
}

// onNodes is what the remediator needs besides the rights on the kinds of jobs.
var onNodes = []right{
	{Verb: "list", Resource: "nodes"}, {Verb: "watch", Resource: "nodes"}, {Verb: "patch", Resource: "nodes"},
	{Verb: "patch", Resource: "nodes", subresource: "status"},
	{Verb: "write", Group: conditions.Domain, Resource: "noderecords"}, {Verb: "write", Group: conditions.Domain, Resource: "jobrecords"},
	{Verb: "list", Resource: "pods"}, {Verb: "delete", Resource: "pods"}, {Verb: "create", Resource: "pods", subresource: "eviction"},
	{Verb: "get", Resource: "namespaces"}, {Verb: "create", Group: "events.k8s.io", Resource: "events"},
	{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", name: "pitcrew-remediator", ours: true},
	{Verb: "patch", Resource: "configmaps", name: conditions.BreakerConfigMap, ours: true},
	{Verb: "patch", Resource: "configmaps", name: conditions.KnownConfigMap, ours: true},
	{Verb: "get", Resource: "configmaps", name: conditions.PauseConfigMap, ours: true},
}

// account is the remediator's service account, as the API server names it.
func (d *doctor) account() string {
	pod, _ := d.PodSpec()
	return "system:serviceaccount:" + d.Namespace + ":" + cmp.Or(pod.ServiceAccountName, "pitcrew-remediator")
}

// missing returns the rights that the remediator has not.
func (d *doctor) missing(ctx context.Context, rights []right) (list []string, err error) {
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + d.Namespace, "system:authenticated"}
	for _, r := range rights {
		review := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: d.account(), Groups: groups,
			ResourceAttributes: d.attributes(r)}}
		if err := d.api.Create(ctx, &review); err != nil {
			return nil, fmt.Errorf("ask for the remediator's rights: %w", err)
		}
		if !review.Status.Allowed {
			list = append(list, r.String())
		}
	}
	return list, nil
}

const againstRoles = "helm upgrade installs the roles; without Helm: kubectl apply -f manifests/remediator/rbac.yaml"

// remediatorRights asks what the remediator may do with nodes and pods.
func (d *doctor) remediatorRights(ctx context.Context) ([]cli.Finding, error) {
	missing, err := d.missing(ctx, onNodes)
	switch {
	case err != nil:
		return nil, err
	case len(missing) == len(onNodes):
		d.noRoles = true
		return []cli.Finding{cli.Problem("", againstRoles, "%s has none of its rights", d.account())}, nil
	case len(missing) > 0:
		return []cli.Finding{cli.Problem("", againstRoles, "%s may not %s", d.account(), strings.Join(missing, ", "))}, nil
	}
	return []cli.Finding{cli.Good("", "%s may do all that it needs on nodes, pods and its own objects", d.account())}, nil
}

// onDevices is what the role pitcrew-remediator-devices allows, which a rule with isolate: device needs.
var onDevices = []rbacv1.PolicyRule{
	ofResources([]string{"devicetaintrules"}, "list", "create", "update", "delete"),
	ofResources([]string{"resourceslices"}, "list"), ofResources([]string{"resourceclaims"}, "get"),
}

func ofResources(resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{resourceapi.GroupName}, Resources: resources, Verbs: verbs}
}

// rightsOf are the rights of rules with one API group each, without those on what the cluster does not serve, such as Kueue's where
// there is no Kueue. What cannot be looked up counts as served.
func (d *doctor) rightsOf(rules []rbacv1.PolicyRule) (rights []right) {
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				r := right{Verb: verb, Group: rule.APIGroups[0]}
				r.Resource, r.subresource, _ = strings.Cut(resource, "/")
				resource := schema.GroupVersionResource{Group: r.Group, Resource: r.Resource}
				if _, err := d.api.RESTMapper().ResourceFor(resource); !meta.IsNoMatchError(err) {
					rights = append(rights, r)
				}
			}
		}
	}
	return rights
}

// deviceRights asks what the remediator may do with devices and claims, if its policy isolates any, as far as the cluster serves them.
func (d *doctor) deviceRights(ctx context.Context) ([]cli.Finding, error) {
	if d.Parsed == nil || d.noRoles { // both were said
		return nil, nil
	}
	if !slices.ContainsFunc(d.Parsed.Rules, func(r policy.Rule) bool { return r.Isolate }) {
		return nil, nil
	}
	missing, err := d.missing(ctx, d.rightsOf(onDevices))
	switch {
	case err != nil:
		return nil, err
	case len(missing) > 0:
		const do = "helm upgrade adds role pitcrew-remediator-devices; without Helm: kubectl apply -f manifests/remediator/devices.yaml"
		return []cli.Finding{cli.Problem("", do, "%s may not %s, which isolate: device needs: whole nodes are quarantined", d.account(),
			strings.Join(missing, ", "))}, nil
	}
	return []cli.Finding{cli.Good("", "%s has role pitcrew-remediator-devices", d.account())}, nil
}

// jobKinds compares the kinds that the remediator knows with those that the cluster serves, and with the remediator's rights.
func (d *doctor) jobKinds(ctx context.Context) ([]cli.Finding, error) {
	all := kinds.BuiltIn()
	if d.Parsed != nil {
		all = kinds.All(d.Parsed.JobKinds)
	}
	var served []string
	var found []cli.Finding
	for _, k := range all {
		mapping, err := d.api.RESTMapper().RESTMapping(k.GVK.GroupKind(), k.GVK.Version)
		if meta.IsNoMatchError(err) {
			switch other, err := d.api.RESTMapper().RESTMapping(k.GVK.GroupKind()); {
			case err == nil:
				found = append(found, cli.Problem("", "upgrade the operator, or Pitcrew",
					"%s is served as %s, and not as %s, which the remediator needs: such jobs are not restarted",
					k.GVK.Kind, other.GroupVersionKind.GroupVersion(), k.GVK.GroupVersion()))
			case k.Resource == "": // named by the policy
				found = append(found, cli.Problem("", "correct jobKinds of the policy, or install the operator",
					"the policy names jobKind %s of %s, and the cluster does not serve it", k.GVK.Kind, k.GVK.GroupVersion()))
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for kind %s: %w", k.GVK.Kind, err)
		}
		served = append(served, k.GVK.Kind)
		if d.noRoles {
			continue // that was said
		}
		rights := []right{}
		for _, verb := range []string{"get", "list", "watch", "patch"} {
			rights = append(rights, right{Verb: verb, Group: k.GVK.Group, Resource: mapping.Resource.Resource})
		}
		missing, err := d.missing(ctx, append(rights, d.rightsOf(k.ExtraRules)...))
		switch {
		case apierrors.IsForbidden(err):
			return append(found, cli.Good("", "served: %s", strings.Join(served, ", ")+", ...")), err
		case err != nil:
			return nil, err
		case len(missing) > 0:
			found = append(found, cli.Problem("", againstRoles, "jobs of kind %s are not restarted: the remediator may not %s", k.GVK.Kind,
				strings.Join(missing, ", ")))
		}
	}
	return append(found, cli.Good("", "served: %s", strings.Join(served, ", "))), nil
}

// The admission policies of the chart.
var policiesOfChart = []string{
	"pitcrew-job-records", "pitcrew-node-records", "pitcrew-own-node", "pitcrew-preflight-report",
	"pitcrew-remediator-commands", "pitcrew-remediator-device-rules", "pitcrew-remediator-jobs", "pitcrew-remediator-nodes",
}

// policiesOfRepair are those that the chart adds with repair.enabled.
var policiesOfRepair = []string{
	"pitcrew-repair-changes", "pitcrew-repair-inputs", "pitcrew-repair-jobs", "pitcrew-repair-pods", "pitcrew-repair-templates",
}

// admissionPolicies looks whether the admission policies are there, valid and bound.
func (d *doctor) admissionPolicies(ctx context.Context) ([]cli.Finding, error) {
	var policies admissionv1.ValidatingAdmissionPolicyList
	if err := d.api.List(ctx, &policies); err != nil {
		return nil, fmt.Errorf("list admission policies: %w", err)
	}
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	if err := d.api.List(ctx, &bindings); err != nil {
		return nil, fmt.Errorf("list the bindings of admission policies: %w", err)
	}
	wanted := policiesOfChart
	if namespace, _ := d.RepairNamespace(); namespace != "" {
		wanted = slices.Concat(wanted, policiesOfRepair)
	}
	var missing, unbound []string
	var found []cli.Finding
	for _, name := range wanted {
		i := slices.IndexFunc(policies.Items, func(p admissionv1.ValidatingAdmissionPolicy) bool { return p.Name == name })
		if i < 0 {
			missing = append(missing, name)
			continue
		}
		if !slices.ContainsFunc(bindings.Items, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == name && slices.Contains(b.Spec.ValidationActions, admissionv1.Deny)
		}) {
			unbound = append(unbound, name)
		}
		if checked := policies.Items[i].Status.TypeChecking; checked != nil && len(checked.ExpressionWarnings) > 0 {
			found = append(found, cli.Warning("", "use a release that knows this version of Kubernetes", "%s: %s", name,
				checked.ExpressionWarnings[0].Warning))
		}
	}
	const do = "helm upgrade --set admissionPolicies=true; without Helm: kubectl apply -f manifests/install.yaml"
	switch {
	case len(missing) == len(wanted):
		found = append(found, cli.Warning("", do, "none is there: users may forge records, and a stolen token of the remediator may do more"))
	case len(missing) > 0:
		found = append(found, cli.Warning("", do, "missing: %s", strings.Join(missing, ", ")))
	}
	if len(unbound) > 0 {
		found = append(found, cli.Warning("", do, "no binding with Deny: %s", strings.Join(unbound, ", ")))
	}
	if len(missing)+len(unbound) == 0 {
		found = append(found, cli.Good("", "all %d are there and bound", len(wanted)))
	}
	return found, nil
}
