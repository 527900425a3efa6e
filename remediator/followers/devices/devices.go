// Package devices keeps the DeviceTaintRules of nodes as decided, and reads what a decision about devices needs.
package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/deviceapi"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/reach"
)

const (
	// devicesDeadline bounds one look at the devices of a node, and one round of writes.
	devicesDeadline = 5 * time.Second
	// recheck is how soon rules that were written are looked at.
	recheck = 20 * time.Millisecond
	// devicesRetry is how soon rules that could not be written are tried again.
	devicesRetry = 5 * time.Second
	// rulesSweep is how often rules without a quarantine are searched. A release deletes its own; what is found was left by a crash, or
	// its node was deleted.
	rulesSweep = 5 * time.Minute
)

// Store reads the devices of nodes and keeps their DeviceTaintRules as decided. It watches nothing, and makes no request about a
// node until a rule of the policy that isolates devices matches one of its conditions. A nil store does nothing.
type Store struct {
	client    client.Client
	apiReader client.Reader
	mapper    meta.RESTMapper
	dryRun    bool

	mu sync.Mutex
	// version is that of the rules which the API server serves; empty: not known yet.
	version string
	// ruled are the nodes that may have rules, whatever their records say.
	ruled map[string]bool
	// refused is why the API server does not accept rules for a node.
	refused map[string]string
	// pretended are the rules that a dry run would have written, by node.
	pretended map[string][]resourceapi.DeviceTaintRule
	// lost is signalled when a node that may have rules is gone.
	lost chan struct{}
}

// New makes a store that asks the API server.
func New(api client.Client, apiReader client.Reader, mapper meta.RESTMapper, dryRun bool) *Store {
	return &Store{
		client: api, apiReader: apiReader, mapper: mapper, dryRun: dryRun, ruled: map[string]bool{}, refused: map[string]string{},
		pretended: map[string][]resourceapi.DeviceTaintRule{}, lost: make(chan struct{}, 1),
	}
}

// Look reads the devices of a node; nil: nothing is to be decided about them. What cannot be read is said in the look.
func (s *Store) Look(ctx context.Context, p *policy.Policy, n *corev1.Node) *devices.Look {
	if s == nil {
		return nil
	}
	record, err := causes.RecordOf(n)
	s.mu.Lock()
	needed := err == nil && (reach.NeedsDevices(p, n, record) || s.ruled[n.Name] && !node.Excluded(n))
	if !needed {
		delete(s.refused, n.Name)
	}
	look := &devices.Look{Refused: s.refused[n.Name], Rules: s.pretended[n.Name]}
	s.mu.Unlock()
	if !needed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, devicesDeadline)
	defer cancel()
	if look.Slices, err = deviceapi.Slices(ctx, s.apiReader, n.Name); err != nil {
		look.SlicesErr = whyUnread("ResourceSlices", err)
	}
	if !s.dryRun {
		ours := client.MatchingLabels{devices.LabelNodeUID: string(n.UID), devices.LabelManagedBy: devices.ManagedBy}
		if look.Rules, err = s.list(ctx, ours); err != nil {
			look.RulesErr = whyUnread("DeviceTaintRules", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(look.Rules) > 0 {
		s.ruled[n.Name] = true
	} else if look.RulesErr == "" {
		delete(s.ruled, n.Name)
	}
	return look
}

// whyUnread returns why objects could not be read, and what to do about it.
func whyUnread(resource string, err error) string {
	switch {
	case errors.Is(err, deviceapi.ErrTooMany):
		return err.Error()
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the remediator may not read %s (resource.k8s.io: list is missing in its role)", resource)
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return fmt.Sprintf("the API server does not serve %s", resource)
	}
	return fmt.Sprintf("%s cannot be read: %v", resource, err)
}

// served is the version of the rules that the API server serves.
func (s *Store) served() (schema.GroupVersionKind, error) {
	s.mu.Lock()
	version := s.version
	s.mu.Unlock()
	if version == "" {
		mapping, err := s.mapper.RESTMapping(deviceapi.RuleKind, deviceapi.RuleVersions...)
		if err != nil {
			return schema.GroupVersionKind{}, err //nolint:wrapcheck // the kind of the error counts
		}
		version = mapping.GroupVersionKind.Version
		s.mu.Lock()
		s.version = version
		s.mu.Unlock()
	}
	return deviceapi.RuleKind.WithVersion(version), nil
}

// forgetVersion has the version found again if an answer says that it may not be served any more, as after a downgrade of the API server.
func (s *Store) forgetVersion(err error) {
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		s.mu.Lock()
		s.version = ""
		s.mu.Unlock()
	}
}

// list reads rules, in pages.
func (s *Store) list(ctx context.Context, labels client.MatchingLabels) (rules []resourceapi.DeviceTaintRule, err error) {
	kind, err := s.served()
	if err != nil {
		return nil, err
	}
	if rules, err = deviceapi.Rules(ctx, s.apiReader, kind.Version, labels); err != nil {
		s.forgetVersion(err)
		return nil, err //nolint:wrapcheck // the kind of the error counts
	}
	return rules, nil
}

// Changes reports whether [Store.Apply] has anything to write.
func (s *Store) Changes(look *devices.Look, rules *causes.DeviceRules) bool {
	return s != nil && look != nil && rules != nil && (len(look.Rules) != len(rules.Want) ||
		slices.ContainsFunc(rules.Want, func(want resourceapi.DeviceTaintRule) bool { return !look.Has(&want) }))
}

// Apply writes the rules that a node must have, and deletes our other ones. It is called once the node carries the decision. Unless after
// is zero, the node is to be decided again after that time.
func (s *Store) Apply(ctx context.Context, n *corev1.Node, look *devices.Look, rules *causes.DeviceRules) (after time.Duration) {
	if s == nil || look == nil || rules == nil {
		return 0
	}
	log := ctrl.LoggerFrom(ctx)
	if s.dryRun {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pretended[n.Name] = rules.Want
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, devicesDeadline)
	defer cancel()
	has := map[string]*resourceapi.DeviceTaintRule{}
	for i := range look.Rules {
		has[look.Rules[i].Name] = &look.Rules[i]
	}
	var errs []error
	for i := range rules.Want {
		want := &rules.Want[i]
		existing := has[want.Name]
		delete(has, want.Name)
		if existing != nil && devices.IsSame(existing, want) {
			continue
		}
		after = recheck // Look at what was written
		s.mu.Lock()
		s.ruled[n.Name] = true
		s.mu.Unlock()
		if err := s.write(ctx, want, existing); err != nil {
			errs = append(errs, fmt.Errorf("write DeviceTaintRule %s for %s: %w", want.Name, n.Name, err))
			// One that somebody has deleted since the look is not refused.
			if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) && existing == nil || meta.IsNoMatchError(err) {
				s.mu.Lock()
				s.refused[n.Name] = fmt.Sprintf("the API server refuses the DeviceTaintRule: %v", err)
				s.mu.Unlock()
			}
		}
	}
	for _, left := range has {
		after = recheck
		if err := s.delete(ctx, left); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		log.Error(err, "Failed to write the rules for the devices of the node; retrying")
		return devicesRetry
	}
	return after
}

func (s *Store) write(ctx context.Context, want, existing *resourceapi.DeviceTaintRule) error {
	kind, err := s.served()
	if err != nil {
		return err
	}
	rule := want.DeepCopy()
	if existing != nil {
		rule.ResourceVersion = existing.ResourceVersion
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(rule)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	delete(object, "status")
	target := &unstructured.Unstructured{Object: object}
	target.SetGroupVersionKind(kind)
	if existing != nil {
		return s.client.Update(ctx, target, client.FieldOwner(quarantine.ControllerName)) //nolint:wrapcheck // by the caller
	}
	return s.client.Create(ctx, target, client.FieldOwner(quarantine.ControllerName)) //nolint:wrapcheck // by the caller
}

func (s *Store) delete(ctx context.Context, rule *resourceapi.DeviceTaintRule) error {
	kind, err := s.served()
	if err != nil {
		return err
	}
	target := &unstructured.Unstructured{}
	target.SetGroupVersionKind(kind)
	target.SetName(rule.Name)
	if err := s.client.Delete(ctx, target, client.Preconditions{UID: &rule.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete DeviceTaintRule %s: %w", rule.Name, err)
	}
	return nil
}

// Forget drops what is known about a node that is gone. Its rules are searched soon.
func (s *Store) Forget(node string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, node)
	delete(s.pretended, node)
	if !s.ruled[node] {
		return
	}
	delete(s.ruled, node)
	select {
	case s.lost <- struct{}{}:
	default:
	}
}
