// Package health finds out what runs of Pitcrew itself, with which policy, and what is wrong with it.
package health

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// Health is what is known of Pitcrew itself.
type Health struct {
	// Context is that of the kubeconfig, Server the URL of the API server.
	Context string `json:"context,omitempty"`
	Server  string `json:"server"`
	// Namespace is the one that was looked in, Version the remediator's and CommandVersion this program's.
	Namespace      string `json:"namespace"`
	Version        string `json:"version,omitempty"`
	CommandVersion string `json:"commandVersion"`

	Remediator remediatorHealth `json:"remediator"`
	Policy     policyHealth     `json:"policy"`
	// Mode is enforce, observe or dry run; empty: it is not known.
	Mode string `json:"mode,omitempty"`
	// Facts are the lines of the header, with what is wrong.
	Facts []cli.Finding `json:"facts"`
}

// remediatorHealth counts the remediator's pods.
type remediatorHealth struct {
	Desired int `json:"desired"`
	Ready   int `json:"ready"`
	// Leader is the pod that acts, RenewedAt when it said so last.
	Leader    string    `json:"leader,omitempty"`
	RenewedAt time.Time `json:"renewedAt,omitzero"`
}

// policyHealth is what is known of the policy.
type policyHealth struct {
	ConfigMap string `json:"configMap,omitempty"`
	// Hash is that of the text in the ConfigMap, InForce that of the one by which the leader decides.
	Hash    string `json:"hash,omitempty"`
	InForce string `json:"inForce,omitempty"`
	// Invalid is why the text is not valid.
	Invalid   string    `json:"invalid,omitempty"`
	Enforce   int       `json:"enforce"`
	Observe   int       `json:"observe"`
	AlertOnly int       `json:"alertOnly"`
	ChangedAt time.Time `json:"changedAt,omitzero"`
}

// Installation are the objects of the remediator; nil where there is none, or where err says why it is not known.
type Installation struct {
	Deployment    *appsv1.Deployment
	DeploymentErr error
	Pods          []corev1.Pod
	PodsErr       error
	lease         *coordinationv1.Lease
	leaseErr      error
	applied       *conditions.Applied
	// Parsed is the policy; nil where none can be read; why says what is wrong.
	Parsed *policy.Policy
	Why    string
}

// Inspection is what was found out about Pitcrew itself, and from what.
type Inspection struct {
	Health
	Installation
}

// Inspect reads what there is to know of Pitcrew itself.
func Inspect(ctx context.Context, c *cli.Target, api client.Client) (*Inspection, error) {
	h := &Inspection{Health: Health{Namespace: c.Namespace, CommandVersion: version.String()}}
	h.cluster(c)
	if err := ReadInstallation(ctx, c, api, &h.Installation); err != nil {
		return nil, err
	}
	if h.Deployment == nil && h.DeploymentErr == nil && len(h.Pods) == 0 && h.PodsErr == nil && h.lease == nil && h.leaseErr == nil {
		missing, err := notInstalled(ctx, c, api)
		h.Why = missing.Seen
		h.Facts = append(h.Facts, missing)
		return h, err
	}
	if err := ReadApplied(ctx, c, api, h); err != nil {
		return nil, err
	}
	h.Facts = append(h.Facts, h.Installed())
	remediator, err := remediatorFact(ctx, c, api, h)
	if err != nil {
		return nil, err
	}
	inForce, err := policyFact(ctx, c, api, h)
	if err != nil {
		return nil, err
	}
	h.Facts = append(h.Facts, remediator, inForce, h.mode())
	return h, nil
}

// cluster names where the command works.
func (h *Inspection) cluster(c *cli.Target) {
	text := "not known"
	if config, err := c.Config(); err == nil {
		h.Server, text = config.Host, config.Host
	}
	if raw, err := c.Kubeconfig().RawConfig(); err == nil {
		if h.Context = cmp.Or(c.Overrides.CurrentContext, raw.CurrentContext); h.Context != "" {
			text = fmt.Sprintf("%s (%s)", h.Context, h.Server)
		}
	}
	h.Facts = append(h.Facts, cli.Good("cluster", "%s", text))
}

// ReadInstallation reads the objects of the remediator in the namespace.
func ReadInstallation(ctx context.Context, c *cli.Target, api client.Client, i *Installation) error {
	named := client.MatchingLabels{cli.LabelName: quarantine.ControllerName}
	var deployments appsv1.DeploymentList
	err := api.List(ctx, &deployments, client.InNamespace(c.Namespace), named)
	if i.DeploymentErr, err = cli.Forbidden(err); err != nil {
		return fmt.Errorf("list Deployments: %w", err)
	}
	if len(deployments.Items) > 0 {
		i.Deployment = &deployments.Items[0]
	}
	var pods corev1.PodList
	err = api.List(ctx, &pods, client.InNamespace(c.Namespace), named)
	if i.PodsErr, err = cli.Forbidden(err); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	i.Pods = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed })
	if i.lease, err = readLease(ctx, c, api); err != nil {
		i.leaseErr, err = cli.Forbidden(err)
	}
	return err
}

// readLease gets the remediator's Lease; nil when there is none.
func readLease(ctx context.Context, c *cli.Target, api client.Client) (*coordinationv1.Lease, error) {
	var lease coordinationv1.Lease
	err := api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: quarantine.ControllerName}, &lease)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get Lease %s: %w", quarantine.ControllerName, err)
	}
	return &lease, nil
}

// notInstalled reports that Pitcrew is not in the namespace, and where it is.
func notInstalled(ctx context.Context, c *cli.Target, api client.Client) (cli.Finding, error) {
	const label = "pitcrew"
	var found appsv1.DeploymentList
	err := api.List(ctx, &found, client.MatchingLabels{cli.LabelName: quarantine.ControllerName})
	seen := fmt.Sprintf("not installed in namespace %s", c.Namespace)
	switch {
	case apierrors.IsForbidden(err):
		return cli.Problem(label, "name its namespace with -n", "%s; whether it is in another one is not known: %v", seen, err), nil
	case err != nil:
		return cli.Finding{}, fmt.Errorf("list Deployments: %w", err)
	case len(found.Items) == 0:
		return cli.Problem(label, "see docs/install.md", "%s, nor in any other one", seen), nil
	}
	var namespaces []string
	for _, d := range found.Items {
		namespaces = append(namespaces, d.Namespace)
	}
	slices.Sort(namespaces)
	return cli.Problem(label, "use -n "+namespaces[0], "%s, but in %s", seen, strings.Join(namespaces, ", ")), nil
}

// ReadApplied reads what the leader wrote about what it applies.
func ReadApplied(ctx context.Context, c *cli.Target, api client.Client, h *Inspection) error {
	object, err := c.Read(ctx, api, conditions.KnownConfigMap)
	switch {
	case apierrors.IsForbidden(err) || err == nil && (object == nil || object.Data[conditions.AppliedKey] == ""):
		return nil
	case err != nil:
		return err
	}
	var applied conditions.Applied
	if json.Unmarshal([]byte(object.Data[conditions.AppliedKey]), &applied) == nil {
		h.applied = &applied
	}
	return nil
}

// Installed returns which version is where.
func (h *Inspection) Installed() cli.Finding {
	switch pod, ok := h.PodSpec(); {
	case h.applied != nil:
		h.Version = h.applied.Version
	case ok:
		h.Version = imageTag(pod)
	case h.DeploymentErr != nil:
		return cli.NotKnown("pitcrew", fmt.Sprintf("%v; if Pitcrew runs in another namespace, name it with -n", h.DeploymentErr))
	}
	text := fmt.Sprintf("%s in namespace %s; this command %s", cmp.Or(h.Version, "version not known"), h.Namespace, h.CommandVersion)
	const unversioned = "(devel)" // made by go install in a clone: there is nothing to compare
	if release(h.Version) != release(h.CommandVersion) && h.Version != "" && h.Version != unversioned && h.CommandVersion != unversioned {
		text += " (not the same)"
	}
	return cli.Good("pitcrew", "%s", text)
}

// release is a version without the v that tags of images lack.
func release(version string) string { return strings.TrimPrefix(version, "v") }

// PodSpec is that of the remediator's pods.
func (i *Installation) PodSpec() (corev1.PodSpec, bool) {
	switch {
	case i.Deployment != nil:
		return i.Deployment.Spec.Template.Spec, true
	case len(i.Pods) > 0:
		return i.Pods[0].Spec, true
	}
	return corev1.PodSpec{}, false
}

// Container is the remediator in a pod.
func Container(pod corev1.PodSpec) corev1.Container {
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == "remediator" })
	switch {
	case i >= 0:
		return pod.Containers[i]
	case len(pod.Containers) > 0:
		return pod.Containers[0]
	}
	return corev1.Container{}
}

// imageTag is the tag of the remediator's image; empty where it has none, or a digest.
func imageTag(pod corev1.PodSpec) string {
	image, _, _ := strings.Cut(Container(pod).Image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[i+1:]
	}
	return ""
}

// hasFlag reports whether the remediator runs with a flag that is set to a value; a flag without a value is true.
func hasFlag(pod corev1.PodSpec, name, value string) bool {
	c := Container(pod)
	return slices.ContainsFunc(append(slices.Clone(c.Command), c.Args...), func(arg string) bool {
		key, is, set := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		return strings.HasPrefix(arg, "-") && key == name && (set && is == value || !set && value == "true")
	})
}

// flagValue is the value of a flag that the remediator runs with; empty: it has none.
func flagValue(pod corev1.PodSpec, name string) string {
	c := Container(pod)
	args := append(slices.Clone(c.Command), c.Args...)
	for i, arg := range args {
		key, value, set := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case !strings.HasPrefix(arg, "-") || key != name:
		case set:
			return value
		case i+1 < len(args):
			return args[i+1]
		}
	}
	return ""
}

// remediatorFact returns how many pods are ready, what is wrong with the others, and who leads.
func remediatorFact(ctx context.Context, c *cli.Target, api client.Client, h *Inspection) (cli.Finding, error) {
	const label = "remediator"
	if h.PodsErr != nil {
		return cli.NotKnown(label, h.PodsErr), nil //nolint:nilerr // that it may not be read is the answer
	}
	var ill []string
	for i := range h.Pods {
		if why := NotReady(&h.Pods[i]); why != "" {
			ill = append(ill, "pod "+h.Pods[i].Name+": "+why)
		} else {
			h.Remediator.Ready++
		}
	}
	slices.Sort(ill)
	h.Remediator.Desired = len(h.Pods)
	if h.Deployment != nil {
		h.Remediator.Desired = 1
		if r := h.Deployment.Spec.Replicas; r != nil {
			h.Remediator.Desired = int(*r)
		}
		for _, condition := range h.Deployment.Status.Conditions {
			if condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue {
				ill = append(ill, "no pod can be made: "+condition.Message)
			}
		}
	}
	f := cli.Finding{Name: label, Level: cli.IsOK, Seen: fmt.Sprintf("%d of %d ready", h.Remediator.Ready, h.Remediator.Desired)}
	crashes := slices.ContainsFunc(ill, func(why string) bool { return strings.Contains(why, crashLoop) })
	switch {
	case h.Deployment == nil && len(h.Pods) == 0: // one that was started by hand holds the Lease
		f.Seen = "no Deployment and no pod in namespace " + c.Namespace
	case h.Remediator.Desired == 0:
		f.Level, f.Do = cli.IsProblem, fmt.Sprintf("kubectl scale -n %s deployment/%s --replicas=2", c.Namespace, quarantine.ControllerName)
	case crashes:
		f.Level, f.Do = cli.IsProblem, fmt.Sprintf("kubectl logs -n %s deployment/%s --previous", c.Namespace, quarantine.ControllerName)
	case h.Remediator.Ready == 0:
		f.Level, f.Do = cli.IsProblem, fmt.Sprintf("kubectl describe pods -n %s -l %s=%s", c.Namespace, cli.LabelName, quarantine.ControllerName)
	case h.Remediator.Ready < h.Remediator.Desired:
		f.Level = cli.IsWarning
	}
	leads, ok, err := leader(ctx, c, api, h)
	if err != nil {
		return cli.Finding{}, err
	}
	if !ok {
		f.Level = cli.IsProblem
	}
	f.Seen = strings.Join(append(append([]string{f.Seen}, ill...), leads), "; ")
	return f, nil
}

const crashLoop = "CrashLoopBackOff"

// NotReady returns why a pod is not ready; empty: it is.
func NotReady(p *corev1.Pod) string {
	why := ""
	for _, condition := range p.Status.Conditions {
		switch {
		case condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue:
			return ""
		case condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse:
			why = "not scheduled: " + condition.Message
		}
	}
	for _, status := range p.Status.ContainerStatuses {
		waiting, last := status.State.Waiting, status.LastTerminationState.Terminated
		switch {
		case status.State.Terminated != nil:
			why, last = "ended", status.State.Terminated
		case waiting != nil && last != nil:
			why = fmt.Sprintf("%s (%d restarts)", waiting.Reason, status.RestartCount)
		case waiting != nil:
			why = strings.TrimSuffix(waiting.Reason+": "+waiting.Message, ": ")
		case !status.Ready:
			why = "runs, but is not ready"
			if status.RestartCount > 0 {
				why += fmt.Sprintf(" (%d restarts)", status.RestartCount)
			}
		}
		if last != nil && !status.Ready {
			why += fmt.Sprintf(", last ended with exit code %d", last.ExitCode)
			if said := cmp.Or(lastLine(last.Message), last.Reason); said != "" {
				why += ": " + said
			}
		}
	}
	return cmp.Or(why, "not ready")
}

// lastLine is the last line of what a container left: an error ends the log.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndex(text, "\n")+1:]
}

// The time that a Lease that looks old gets to be renewed: its holder renews it every two seconds. A difference of the clocks
// of this machine and of the holder's node makes no leader look dead.
var renewal = wait.Backoff{Duration: 500 * time.Millisecond, Steps: 8}

// leader returns who leads; ok is false when no replica does.
func leader(ctx context.Context, c *cli.Target, api client.Client, h *Inspection) (text string, ok bool, err error) {
	pod, known := h.PodSpec()
	switch {
	case h.leaseErr != nil:
		return fmt.Sprintf("leader not known: %v", h.leaseErr), true, nil //nolint:nilerr // that it may not be read is the answer
	case known && hasFlag(pod, "leader-elect", "false"):
		return "runs without leader election", true, nil
	case h.lease == nil:
		return fmt.Sprintf("no leader: there is no Lease %s", quarantine.ControllerName), false, nil
	}
	holder := leaderOf(h.lease)
	if holder == "" {
		return "no leader: the last one has given up the Lease", false, nil
	}
	h.Remediator.Leader, h.Remediator.RenewedAt = holder, renewed(h.lease)
	valid := 15 * time.Second
	if s := h.lease.Spec.LeaseDurationSeconds; s != nil {
		valid = time.Duration(*s) * time.Second
	}
	age := c.Now().Sub(h.Remediator.RenewedAt)
	if age < valid {
		return fmt.Sprintf("leader %s, renewed %s ago", holder, duration.HumanDuration(max(0, age))), true, nil
	}
	err = wait.ExponentialBackoffWithContext(ctx, renewal, func(ctx context.Context) (bool, error) {
		now, err := readLease(ctx, c, api)
		return err == nil && now != nil && renewed(now).After(h.Remediator.RenewedAt), err
	})
	switch {
	case err == nil:
		return fmt.Sprintf("leader %s; the clocks of its node and of this machine are %s apart", holder, duration.HumanDuration(age)), true, nil
	case wait.Interrupted(err) && ctx.Err() == nil:
		return fmt.Sprintf("no leader: %s has not renewed the Lease for %s", holder, duration.HumanDuration(age)), false, nil
	}
	return "", false, err
}

// leaderOf is the pod that holds a Lease: its identity is the host's name, which is the pod's, and a random part.
func leaderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	holder := *lease.Spec.HolderIdentity
	if i := strings.LastIndex(holder, "_"); i > 0 {
		return holder[:i]
	}
	return holder
}

func renewed(lease *coordinationv1.Lease) time.Time {
	if lease.Spec.RenewTime == nil {
		return time.Time{}
	}
	return lease.Spec.RenewTime.Time
}

// loadedWithin is the time in which a changed ConfigMap is mounted by the kubelet and read by the remediator.
const loadedWithin = 3 * time.Minute

// policyFact reports whether the policy is valid and whether the leader decides by it.
func policyFact(ctx context.Context, c *cli.Target, api client.Client, h *Inspection) (cli.Finding, error) {
	const label = "policy"
	pod, ok := h.PodSpec()
	if !ok {
		h.Why = fmt.Sprintf("no pod of the remediator in namespace %s mounts a policy; name one with -f", c.Namespace)
		return cli.NotKnown(label, h.Why), nil
	}
	var missing []string
	for _, volume := range pod.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		object, err := c.Read(ctx, api, volume.ConfigMap.Name)
		if err != nil {
			h.Why = err.Error()
			return cli.Unless(label, err)
		}
		if object == nil {
			missing = append(missing, volume.ConfigMap.Name)
			continue
		}
		for _, text := range cli.PolicyTexts(object) {
			h.readPolicy(object, text)
			return policyState(c, h), nil
		}
	}
	h.Why = "no ConfigMap that the remediator's pods mount has a policy"
	if len(missing) > 0 {
		h.Why = fmt.Sprintf("ConfigMap %s is missing", strings.Join(missing, ", "))
	}
	return cli.Problem(label, "helm upgrade puts it back", "%s", h.Why), nil
}

// readPolicy parses the policy in a ConfigMap.
func (h *Inspection) readPolicy(object *corev1.ConfigMap, text string) {
	h.Policy = policyHealth{ConfigMap: object.Name, Hash: policy.Hash([]byte(text)), ChangedAt: changedAt(object)}
	p, err := policy.Parse([]byte(text))
	if err != nil {
		h.Policy.Invalid = err.Error()
		h.Why = fmt.Sprintf("the policy in ConfigMap %s is invalid (%v); name another one with -f", object.Name, err)
		return
	}
	h.Parsed = p
	for _, r := range p.Rules {
		switch {
		case r.AlertOnly:
			h.Policy.AlertOnly++
		case r.Observe:
			h.Policy.Observe++
		default:
			h.Policy.Enforce++
		}
	}
}

// policyState compares the policy of the ConfigMap with the one that the leader applies. Where both know of an error the leader's
// counts: this command may be of another version.
func policyState(c *cli.Target, h *Inspection) cli.Finding {
	const label = "policy"
	age := c.Now().Sub(h.Policy.ChangedAt)
	changed := duration.HumanDuration(age) + " ago"
	fix := fmt.Sprintf("correct ConfigMap %s, mostly by helm upgrade; `kubectl pitcrew policy validate FILE` checks a file",
		h.Policy.ConfigMap)
	loaded := h.applied != nil && h.applied.Policy == h.Policy.Hash && h.applied.Invalid == ""
	if h.applied != nil {
		h.Policy.InForce = h.applied.Policy
	}
	meanwhile := "the remediator keeps the last valid one"
	switch {
	case h.applied != nil && h.applied.Policy != "":
		meanwhile = "hash " + h.applied.Policy + " stays in force"
	case h.applied != nil:
		meanwhile = "none is in force: nothing is quarantined or released"
	}
	rules := fmt.Sprintf("%d rules enforce, %d observe", h.Policy.Enforce, h.Policy.Observe)
	if h.Policy.AlertOnly > 0 {
		rules += fmt.Sprintf(", %d only alert", h.Policy.AlertOnly)
	}
	switch {
	case h.Policy.Invalid != "" && loaded:
		return cli.Warning(label, "use the command of the remediator's release", "hash %s is in force, but this command cannot read it: %s",
			h.Policy.Hash, h.Policy.Invalid)
	case h.Policy.Invalid != "":
		return cli.Problem(label, fix, "invalid, changed %s: %s; %s", changed, h.Policy.Invalid, meanwhile)
	case h.applied == nil:
		return cli.Good(label, "valid, hash %s, %s; changed %s; whether the remediator has read it is not known", h.Policy.Hash, rules, changed)
	case loaded:
		return cli.Good(label, "valid, hash %s, %s; changed %s", h.Policy.Hash, rules, changed)
	case age < loadedWithin:
		return cli.Warning(label, "", "valid, hash %s, %s; changed %s and not read by the remediator yet; %s", h.Policy.Hash, rules, changed,
			meanwhile)
	case h.applied.Invalid != "": // sooner, that may be about the text before
		return cli.Problem(label, fix, "the remediator refuses hash %s, changed %s: %s; %s", h.Policy.Hash, changed, h.applied.Invalid, meanwhile)
	}
	return cli.Problem(label, fmt.Sprintf("kubectl rollout restart -n %s deployment/%s", c.Namespace, quarantine.ControllerName),
		"valid, hash %s, %s; changed %s, but the remediator has not read it; %s", h.Policy.Hash, rules, changed, meanwhile)
}

// changedAt is when the data of a ConfigMap was changed last, as far as its managed fields tell.
func changedAt(object *corev1.ConfigMap) time.Time {
	var at time.Time
	for _, entry := range object.ManagedFields {
		if entry.Time != nil && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:data"`) && entry.Time.After(at) {
			at = entry.Time.Time
		}
	}
	if at.IsZero() {
		return object.CreationTimestamp.Time
	}
	return at
}

// mode reports whether anything is done about a fault.
func (h *Inspection) mode() cli.Finding {
	const label = "mode"
	pod, ok := h.PodSpec()
	switch {
	case ok && hasFlag(pod, "dry-run", "true"):
		h.Mode = "dry run"
		return cli.Warning(label, "", "dry run: nothing is written on nodes or jobs")
	case h.Parsed == nil:
		return cli.NotKnown(label, "the policy cannot be read")
	case h.Policy.Enforce == 0:
		h.Mode = "observe"
		return cli.Warning(label, "", "observe: nothing is tainted or restarted")
	case h.Policy.Observe > 0:
		h.Mode = "enforce"
		var observing []string
		for _, r := range h.Parsed.Rules {
			if r.Observe && !r.AlertOnly {
				observing = append(observing, r.Name)
			}
		}
		return cli.Good(label, "enforce; rules that only observe: %s", strings.Join(observing, ", "))
	}
	h.Mode = "enforce"
	return cli.Good(label, "enforce")
}

// EnableRepair is how repairs and checks of nodes are switched on.
const EnableRepair = "helm upgrade --reuse-values --set repair.enabled=true; see docs/repair.md"

// RepairNamespace is the namespace of the Jobs that repair and check nodes; empty: the remediator visits no node. known is false where
// its flags are not known, as of one that was started by hand.
func (i *Installation) RepairNamespace() (name string, known bool) {
	pod, ok := i.PodSpec()
	return flagValue(pod, "repair-namespace"), ok
}
