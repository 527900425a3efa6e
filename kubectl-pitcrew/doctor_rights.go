package main

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
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// right is a permission, in words and as the API server takes it.
type right struct {
	verb, group, resource, subresource, name string
	// ours: it is needed in Pitcrew's namespace only; namespace: in that one only.
	ours      bool
	namespace string
}

func (r right) String() string {
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	return strings.TrimSpace(r.verb + " " + resource + " " + r.name)
}

func (d *doctor) attributes(r right) *authorizationv1.ResourceAttributes {
	namespace := r.namespace
	if r.ours {
		namespace = d.namespace
	}
	return &authorizationv1.ResourceAttributes{Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource, Name: r.name, Namespace: namespace}
}

// toView and toOperate are what the roles pitcrew-view and pitcrew-operate are for.
var (
	toView = []right{
		{verb: "list", resource: "nodes"}, {verb: "list", resource: "pods", ours: true}, {verb: "get", resource: "configmaps", ours: true},
		{verb: "list", group: "apps", resource: "deployments", ours: true}, {verb: "list", group: "apps", resource: "daemonsets", ours: true},
		{verb: "get", group: "coordination.k8s.io", resource: "leases", name: "pitcrew-remediator", ours: true},
	}
	toOperate = []right{
		{verb: "patch", resource: "nodes"}, {verb: "write", group: conditions.Domain, resource: "noderecords"},
		{verb: "create", resource: "configmaps", ours: true}, {verb: "delete", resource: "configmaps", name: conditions.PauseConfigMap, ours: true},
		{verb: "create", resource: "pods", subresource: "exec", ours: true},
	}
)

// ownRights asks what the user may do.
func (d *doctor) ownRights(ctx context.Context) ([]finding, error) {
	lacks := func(rights []right) (list []string, err error) {
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
	user, err := whoAmI(ctx, d.api)
	if err != nil {
		return nil, err
	}
	view, err := lacks(toView)
	if err != nil {
		return nil, err
	}
	operate, err := lacks(toOperate)
	if err != nil {
		return nil, err
	}
	switch {
	case len(view) > 0:
		return []finding{warning("", "an admin binds the role pitcrew-view to you (userRoles of the chart)", "%s may not %s: what needs that is not shown", user, strings.Join(view, ", "))}, nil
	case len(operate) > 0:
		return []finding{good("", "%s may look at everything, and change nothing: that needs role pitcrew-operate (%s)", user, strings.Join(operate, ", "))}, nil
	}
	return []finding{good("", "%s may look at everything, quarantine, release, clear and pause", user)}, nil
}

// onNodes is what the remediator needs besides the rights on the kinds of jobs.
var onNodes = []right{
	{verb: "list", resource: "nodes"}, {verb: "watch", resource: "nodes"}, {verb: "patch", resource: "nodes"}, {verb: "patch", resource: "nodes", subresource: "status"},
	{verb: "write", group: conditions.Domain, resource: "noderecords"}, {verb: "write", group: conditions.Domain, resource: "jobrecords"},
	{verb: "list", resource: "pods"}, {verb: "delete", resource: "pods"}, {verb: "create", resource: "pods", subresource: "eviction"},
	{verb: "get", resource: "namespaces"}, {verb: "create", group: "events.k8s.io", resource: "events"},
	{verb: "update", group: "coordination.k8s.io", resource: "leases", name: "pitcrew-remediator", ours: true},
	{verb: "patch", resource: "configmaps", name: conditions.BreakerConfigMap, ours: true}, {verb: "patch", resource: "configmaps", name: conditions.KnownConfigMap, ours: true},
	{verb: "get", resource: "configmaps", name: conditions.PauseConfigMap, ours: true},
}

// account is the remediator's service account, as the API server names it.
func (d *doctor) account() string {
	pod, _ := d.podSpec()
	return "system:serviceaccount:" + d.namespace + ":" + cmp.Or(pod.ServiceAccountName, "pitcrew-remediator")
}

// lacks lists the rights that the remediator has not.
func (d *doctor) lacks(ctx context.Context, rights []right) (list []string, err error) {
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + d.namespace, "system:authenticated"}
	for _, r := range rights {
		review := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: d.account(), Groups: groups, ResourceAttributes: d.attributes(r)}}
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
func (d *doctor) remediatorRights(ctx context.Context) ([]finding, error) {
	lacks, err := d.lacks(ctx, onNodes)
	switch {
	case err != nil:
		return nil, err
	case len(lacks) == len(onNodes):
		d.noRoles = true
		return []finding{problem("", againstRoles, "%s has none of its rights", d.account())}, nil
	case len(lacks) > 0:
		return []finding{problem("", againstRoles, "%s may not %s", d.account(), strings.Join(lacks, ", "))}, nil
	}
	return []finding{good("", "%s may do all that it needs on nodes, pods and its own objects", d.account())}, nil
}

// onDevices is what the role pitcrew-remediator-devices allows, which a rule with isolate: device needs.
var onDevices = []rbacv1.PolicyRule{
	ofResources([]string{"devicetaintrules"}, "list", "create", "update", "delete"),
	ofResources([]string{"resourceslices"}, "list"), ofResources([]string{"resourceclaims"}, "get"),
}

func ofResources(resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{resourceapi.GroupName}, Resources: resources, Verbs: verbs}
}

// rightsOf are the rights of rules with one API group each, without those on what the cluster does not serve, such as Kueue's where there is no
// Kueue. What cannot be looked up counts as served.
func (d *doctor) rightsOf(rules []rbacv1.PolicyRule) (rights []right) {
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				r := right{verb: verb, group: rule.APIGroups[0]}
				r.resource, r.subresource, _ = strings.Cut(resource, "/")
				if _, err := d.api.RESTMapper().ResourceFor(schema.GroupVersionResource{Group: r.group, Resource: r.resource}); !meta.IsNoMatchError(err) {
					rights = append(rights, r)
				}
			}
		}
	}
	return rights
}

// deviceRights asks what the remediator may do with devices and claims, if its policy isolates any, as far as the cluster serves them.
func (d *doctor) deviceRights(ctx context.Context) ([]finding, error) {
	if d.policy == nil || d.noRoles { // both were said
		return nil, nil
	}
	if !slices.ContainsFunc(d.policy.Rules, func(r policy.Rule) bool { return r.Isolate }) {
		return nil, nil
	}
	lacks, err := d.lacks(ctx, d.rightsOf(onDevices))
	switch {
	case err != nil:
		return nil, err
	case len(lacks) > 0:
		const do = "helm upgrade adds role pitcrew-remediator-devices; without Helm: kubectl apply -f manifests/remediator/devices.yaml"
		return []finding{problem("", do, "%s may not %s, which isolate: device needs: whole nodes are quarantined", d.account(), strings.Join(lacks, ", "))}, nil
	}
	return []finding{good("", "%s has role pitcrew-remediator-devices", d.account())}, nil
}

// jobKinds compares the kinds that the remediator knows with those that the cluster serves, and with the remediator's rights.
func (d *doctor) jobKinds(ctx context.Context) ([]finding, error) {
	all := kinds.BuiltIn()
	if d.policy != nil {
		all = kinds.All(d.policy.JobKinds)
	}
	var served []string
	var found []finding
	for _, k := range all {
		mapping, err := d.api.RESTMapper().RESTMapping(k.GVK.GroupKind(), k.GVK.Version)
		if meta.IsNoMatchError(err) {
			switch other, err := d.api.RESTMapper().RESTMapping(k.GVK.GroupKind()); {
			case err == nil:
				found = append(found, problem("", "upgrade the operator, or Pitcrew", "%s is served as %s, and not as %s, which the remediator needs: such jobs are not restarted",
					k.GVK.Kind, other.GroupVersionKind.GroupVersion(), k.GVK.GroupVersion()))
			case k.Resource == "": // named by the policy
				found = append(found, problem("", "correct jobKinds of the policy, or install the operator", "the policy names jobKind %s of %s, and the cluster does not serve it", k.GVK.Kind, k.GVK.GroupVersion()))
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
			rights = append(rights, right{verb: verb, group: k.GVK.Group, resource: mapping.Resource.Resource})
		}
		lacks, err := d.lacks(ctx, append(rights, d.rightsOf(k.ExtraRules)...))
		switch {
		case apierrors.IsForbidden(err):
			return append(found, good("", "served: %s", strings.Join(served, ", ")+", ...")), err
		case err != nil:
			return nil, err
		case len(lacks) > 0:
			found = append(found, problem("", againstRoles, "jobs of kind %s are not restarted: the remediator may not %s", k.GVK.Kind, strings.Join(lacks, ", ")))
		}
	}
	return append(found, good("", "served: %s", strings.Join(served, ", "))), nil
}

// The admission policies of the chart.
var policiesOfChart = []string{
	"pitcrew-job-records", "pitcrew-node-records", "pitcrew-own-node", "pitcrew-preflight-report",
	"pitcrew-remediator-commands", "pitcrew-remediator-device-rules", "pitcrew-remediator-jobs", "pitcrew-remediator-nodes",
}

// policiesOfRepair are those that the chart adds with repair.enabled.
var policiesOfRepair = []string{"pitcrew-repair-changes", "pitcrew-repair-jobs", "pitcrew-repair-pods", "pitcrew-repair-templates"}

// admissionPolicies looks whether the admission policies are there, valid and bound.
func (d *doctor) admissionPolicies(ctx context.Context) ([]finding, error) {
	var policies admissionv1.ValidatingAdmissionPolicyList
	if err := d.api.List(ctx, &policies); err != nil {
		return nil, fmt.Errorf("list admission policies: %w", err)
	}
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	if err := d.api.List(ctx, &bindings); err != nil {
		return nil, fmt.Errorf("list the bindings of admission policies: %w", err)
	}
	wanted := policiesOfChart
	if namespace, _ := d.repairNamespace(); namespace != "" {
		wanted = slices.Concat(wanted, policiesOfRepair)
	}
	var missing, unbound []string
	var found []finding
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
			found = append(found, warning("", "use a release that knows this version of Kubernetes", "%s: %s", name, checked.ExpressionWarnings[0].Warning))
		}
	}
	const do = "helm upgrade --set admissionPolicies=true; without Helm: kubectl apply -f manifests/install.yaml"
	switch {
	case len(missing) == len(wanted):
		found = append(found, warning("", do, "none is there: users may forge records, and a stolen token of the remediator may do more"))
	case len(missing) > 0:
		found = append(found, warning("", do, "missing: %s", strings.Join(missing, ", ")))
	}
	if len(unbound) > 0 {
		found = append(found, warning("", do, "no binding with Deny: %s", strings.Join(unbound, ", ")))
	}
	if len(missing)+len(unbound) == 0 {
		found = append(found, good("", "all %d are there and bound", len(wanted)))
	}
	return found, nil
}
